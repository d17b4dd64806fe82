"""Every recipe that waits for data names public sets, or is for one's own images."""

from sphereface2.config.schema import recipes
from sphereface2.data.public_sets import KNOWN_DATA, known_data_of


def test_every_recipe_that_waits_for_data_names_its_sets_or_is_for_ones_own() -> None:
    for recipe in recipes():
        waits = "data.path" in recipe.summary
        assert bool(known_data_of(recipe.name)) == (waits and recipe.name != "own-faces")
        assert set(known_data_of(recipe.name)) <= set(KNOWN_DATA)


def test_the_set_that_a_recipe_is_made_for_comes_first() -> None:
    for recipe in recipes():
        known = known_data_of(recipe.name)
        assert not known or KNOWN_DATA[known[0]].title.lower() in recipe.summary.lower()
