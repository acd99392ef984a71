from trainer.errors import missing_package, one_line


def test_a_missing_package_is_one_line_with_the_remedy() -> None:
    """Before `make demo` there is no environment."""
    output = str(missing_package(ModuleNotFoundError(name="tyro"), "/usr/bin/python3"))
    assert "found no tyro in /usr/bin/python3; run `make demo` once" in output


def test_cudas_advice_is_left_out_of_an_error() -> None:
    """It is the same below each of them; what else has several lines keeps them."""
    advice = (
        "\nSearch for `cudaErrorAssert' in https://docs.nvidia.com/… for more information."
        "\nCUDA kernel errors might be asynchronously reported at some other API call, …"
        "\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
        "\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
    )
    older = advice[advice.index("\nCUDA") :]
    for below in (advice, older):
        error = RuntimeError(f"CUDA error: device-side assert triggered{below}\n")
        assert one_line(error) == "RuntimeError: CUDA error: device-side assert triggered"
    assert one_line(ValueError("two\nlines")) == "ValueError: two lines"
