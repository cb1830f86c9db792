"""Columns of numbers as people write them: ranks, headers, an index, decimal commas; what is no such column."""

import pytest

from sequoia_core.files.number_tables import number_column

COLUMNS = [  # text -> numbers, what ranks begin with, names of columns
    ("0.5\n0.25\n", [0.5, 0.25], None, ()),
    ("0.5, 0.25, 0.1\n", [0.5, 0.25, 0.1], None, ()),
    ("0.5 0.25\n", [0.5, 0.25], None, ()),
    ("\ufeff# ours\n\n 0.5\n", [0.5], None, ()),
    ("1,0.5\n", [0.5], 1, ()),  # rank 1, not two numbers
    ("2,0.5\n", [2, 0.5], None, ()),
    ("1,0.5,0.2\n", [1, 0.5, 0.2], None, ()),
    ("2,0.25\n1,0.5\n", [0.5, 0.25], 1, ()),
    ("0 0.5\n1 0.25\n", [0.5, 0.25], 0, ()),
    ("1\t0,5\n2\t0,25\n", [0.5, 0.25], 1, ()),
    ("1;0,5\n2;0,25\n", [0.5, 0.25], 1, ()),
    ("0,77\n0,15\n", [0.77, 0.15], None, ()),
    ("1,0\n0,15\n", [1.0, 0.15], None, ()),
    ("0,77\n", [0.77], None, ()),
    ("1,5\n", [5], 1, ()),
    ("0,5\n1,25\n", [5, 25], 0, ()),  # ranks run upwards, decimals do not
    ("Rank,Prob\n1,0.5\n2,0.25\n", [0.5, 0.25], 1, ("rank", "prob")),
    ("p\n0.5\n", [0.5], None, ("p",)),
    (",0\n0,0.5\n1,0.25\n", [0.5, 0.25], 0, ("0",)),  # as pandas writes it
    (",rank,p\n0,1,0.5\n1,2,0.25\n", [0.5, 0.25], 1, ("rank", "p")),
    ("name,rate,n\n7,0.5,90\n9,0.25,80\n", [0.5, 0.25], None, ("name", "rate", "n")),
    ("n,survival,position\n9,0.5,1\n9,0.25,2\n", [0.5, 0.25], 1, ("n", "survival", "position")),
]


@pytest.mark.sample(len(COLUMNS))
@pytest.mark.parametrize(("text", "values", "first", "header"), COLUMNS)
def test_a_column_is_read_as_it_was_meant(text, values, first, header):
    assert number_column(text.encode()) == (values, first, header)


REFUSED = [
    ("", "found no numbers"),
    ("p\n", "found no numbers"),
    ("0.5\nmany\n", "found 'many', expected a number"),
    ("0.5\n0.25,0.1\n", "found rows of other lengths"),
    ("1,0.5\n3,0.25\n", "found ranks with gaps or repeats"),
    ("1,0.5\n1,0.25\n", "found ranks with gaps or repeats"),
    ("2,0.5\n3,0.25\n", "found ranks with gaps or repeats"),
    ("a,b,c\n1,2,3\n2,3,4\n", "found columns a, b, c, expected"),
    ("1,2,3\n2,3,4\n", "found columns 3 without names, expected"),
    (",a,b\n0,1,0.5\n1,2,0.25\n", "found columns a, b, expected"),
    (",a,b,c\n0,1,0.5,9\n1,2,0.25,9\n", "found columns a, b, c, expected"),
    (",,p\n0,1,0.5\n1,2,0.25\n", "found columns p, expected"),
    ("p,P\n0.5,0.25\n", "found the column 'p' twice"),
    ('"0.5\n' + "x" * 200_000, "found text that is no table"),
]


@pytest.mark.sample(len(REFUSED))
@pytest.mark.parametrize(("text", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_no_column_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        number_column(text.encode())
