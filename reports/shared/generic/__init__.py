"""The report of a study without a paper: means by group and variant, and variants compared in pairs."""
