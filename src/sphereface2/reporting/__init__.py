"""Reporting: results in, tables, figures and one HTML page out; the only place with matplotlib.

Figures and the page are imported from their modules (`plots`, `report`), so that the tables of the
terminal need no matplotlib.
"""

from sphereface2.reporting.history import Curve, Series, training_curves
from sphereface2.reporting.pictures import PairPicture, ReportPictures, hardest_pairs
from sphereface2.reporting.tables import accuracy_table, detail_table

__all__ = [
    "Curve",
    "PairPicture",
    "ReportPictures",
    "Series",
    "accuracy_table",
    "detail_table",
    "hardest_pairs",
    "training_curves",
]
