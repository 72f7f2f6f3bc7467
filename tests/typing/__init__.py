"""What a type checker sees."""  # noqa: A005 - a package of tests, imported as tests.typing only
