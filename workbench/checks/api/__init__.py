"""The checks of the public Python API, which `workbench accountants` and `workbench claims` call too."""
