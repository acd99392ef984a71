from trainer.errors import missing_package


def test_a_missing_package_is_one_line_with_the_remedy() -> None:
    """Before `make demo` there is no environment."""
    output = str(missing_package(ModuleNotFoundError(name="tyro"), "/usr/bin/python3"))
    assert "found no tyro in /usr/bin/python3; run `make demo` once" in output
