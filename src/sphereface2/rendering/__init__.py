"""Rendering: synthetic people and their pictures, without any data set.

`person` draws who somebody is and the conditions of a picture, `surface` is the shape of the head
and casts rays at it, `skin` is what all pictures of a person share, `texture` draws one face on it,
`renderer` makes the picture. A picture depends on (seed, identity, sample) only, so it is the same
in any order, process or thread.
"""
