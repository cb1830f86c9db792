"""Number columns in common layouts are read: ranks, headers, an index, decimal commas, % signs; others are refused."""

import time

import pytest

from sequoia_core.files.number_tables import number_column

COLUMNS = [  # text, values, first rank, header
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
    ("0,5\n1,25\n", [5, 25], 0, ()),  # ranks count upwards, decimals do not
    ("Rank,Prob\n1,0.5\n2,0.25\n", [0.5, 0.25], 1, ("rank", "prob")),
    ("p\n0.5\n", [0.5], None, ("p",)),
    (",0\n0,0.5\n1,0.25\n", [0.5, 0.25], 0, ("0",)),  # as pandas writes it
    (",rank,p\n0,1,0.5\n1,2,0.25\n", [0.5, 0.25], 1, ("rank", "p")),
    ("name,rate,n\n7,0.5,90\n9,0.25,80\n", [0.5, 0.25], None, ("name", "rate", "n")),
    ("n,survival,position\n9,0.5,1\n9,0.25,2\n", [0.5, 0.25], 1, ("n", "survival", "position")),
]


@pytest.mark.sample(len(COLUMNS))
@pytest.mark.parametrize(("text", "values", "first", "header"), COLUMNS)
def test_number_columns_are_read(text, values, first, header):
    assert number_column(text.encode()) == (values, first, header, False)


PERCENTAGES = [  # text, values, first rank
    ("72%\n11%\n", [0.72, 0.11], None),
    ("72 %, 11 %", [0.72, 0.11], None),
    ("72% 11 %", [0.72, 0.11], None),
    ("72\u00a0%\n11\u202f%\n", [0.72, 0.11], None),
    ("1\t72 %\n2\t11 %\n", [0.72, 0.11], 1),
    ("rank,p (%)\n1,72%\n2,11%\n", [0.72, 0.11], 1),
    ("72,5 %\n11,5 %\n", [0.725, 0.115], None),
    ("72,5 %; 11,5 %", [0.725, 0.115], None),
    ("72,5%", [0.725], None),
    ("1,72%", [0.72], 1),
    ("name,rate,n\n7,50%,90\n9,25%,80\n", [0.5, 0.25], None),
    ("0.5%\n", [0.005], None),
    ("150%\n", [1.5], None),
]


@pytest.mark.sample(len(PERCENTAGES))
@pytest.mark.parametrize(("text", "values", "first"), PERCENTAGES)
def test_numbers_with_percent_signs_are_divided_by_100(text, values, first):
    column = number_column(text.encode())
    assert column.values == pytest.approx(values, rel=1e-15) and column.first == first and column.percent


def test_spaces_before_a_percent_sign_take_linear_time():
    started = time.process_time()
    assert number_column(b"72%" + b" " * 200_000 + b"11%").values == [0.72, 0.11]
    assert time.process_time() - started < 1


@pytest.mark.parametrize("text", ["72,5\n11,3\n", "72,5\n72,5\n"])
def test_decimal_commas_may_follow_large_numbers(text):
    assert number_column(text.encode()).values[0] == 72.5


REFUSED = [
    ("", "found no numbers"),
    ("p\n", "found no numbers"),
    ("0.5\nmany\n", "found 'many', expected a number"),
    ("0.5\n0.25,0.1\n", "found rows of different lengths"),
    ("1,0.5\n3,0.25\n", "found missing or repeated ranks"),
    ("1,0.5\n1,0.25\n", "found missing or repeated ranks"),
    ("2,0.5\n3,0.25\n", "found missing or repeated ranks"),
    ("a,b,c\n1,2,3\n2,3,4\n", "found columns a, b, c, expected"),
    ("1,2,3\n2,3,4\n", "found columns 1 to 3 without names, expected"),
    (",a,b\n0,1,0.5\n1,2,0.25\n", "found columns a, b, expected"),
    (",a,b,c\n0,1,0.5,9\n1,2,0.25,9\n", "found columns a, b, c, expected"),
    (",,p\n0,1,0.5\n1,2,0.25\n", "found columns p, expected"),
    ("p,P\n0.5,0.25\n", "found the column 'p' twice"),
    ("0.5\n\n# a comment\n11%\n", "line 4: found a value with a % sign, expected % signs on all values or on none"),
    ("rank,p\n1,72%\n2,0.11\n", "line 3: found a value without a % sign"),
    ("72%, 0.11", "line 1: found a value without a % sign"),
    ("1%,0.5\n2%,0.25\n", "found missing or repeated ranks"),
    ("72%%\n11%\n72%%\n", "found '72%%', expected a number"),
    ('"0.5\n' + "x" * 200_000, "found text that is not a table"),
]


@pytest.mark.sample(len(REFUSED))
@pytest.mark.parametrize(("text", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_other_tables_are_refused(text, said):
    with pytest.raises(ValueError, match=said):
        number_column(text.encode())
