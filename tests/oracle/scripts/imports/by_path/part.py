VALUE = [__name__, GIVEN]  # noqa: F821
