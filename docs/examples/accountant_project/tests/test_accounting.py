"""The accountant inside a test file.

`pytest` runs every check of `acct:epsilon` without this file too, because pyproject.toml says `--accountant`.
"""

from acct import epsilon

from reports import privacy_line


def test_the_model_card_says_what_the_accountant_says():
    assert privacy_line(1.0) == "epsilon = 2.11 at delta = 1e-05 (add-remove)"


def test_the_accountant_is_not_looser_than_we_want(accountant_conformance):
    report = accountant_conformance(epsilon, looseness_budget=15, only=["looseness"], seconds=5)
    assert report.judged > 0
