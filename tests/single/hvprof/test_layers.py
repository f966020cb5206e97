"""hvprof layers: what it measures of a model whose layers are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hvd_ext.errors import UsageError
from hvprof.cli import main
from hvprof.layers.table import Layer, LayerTable, load_layers
from hvprof.layers.timing import parse_shape, time_layers

pytest.importorskip("torch")
RESNET = ["resnet.model:resnet50", "classes=10"]


def test_the_gradients_of_a_model_are_all_there() -> None:
    table = time_layers(RESNET[0], RESNET[1:], (3, 64, 64), (2, 1), repeats=1)
    assert table.batches == (1, 2)
    # ResNet-50 with 10 classes instead of 1000.
    parameters = 25_557_032 - 990 * 2049
    assert sum(layer.gradient_bytes for layer in table.layers) == 4 * parameters
    by_name = {layer.name: layer for layer in table.layers}
    assert len(table.layers) == len(by_name)
    assert table.layers[0].name == "conv1"
    assert table.layers[-1].name == "fc"
    assert by_name["conv1"].product == f"{32 * 32} x {3 * 49} x 64"
    assert by_name["fc"].product == "1 x 2048 x 10"
    # Backward ends with the first layer; activations have no gradients of their own.
    ready = [layer.ready_s for layer in table.layers if layer.gradient_bytes]
    assert min(ready) > 0
    assert by_name["fc"].ready_s < by_name["layer3.0.conv1"].ready_s < by_name["conv1"].ready_s
    assert by_name["relu"].ready_s == 0
    for layer in table.layers:
        assert all(time_s >= 0 for time_s in (*layer.forward_s, *layer.backward_s))
        if layer.kind == "Conv2d":
            assert min(*layer.forward_s, *layer.backward_s) > 0


def test_the_command_writes_what_a_report_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ["--input", "3,64,64", "--batch", "1,2", "--repeats", "1"]
    assert main(["layers", *shape, "--json", "--", *RESNET]) == 0
    path = tmp_path / "layers.json"
    path.write_text(capsys.readouterr().out)
    table = load_layers(path)
    assert json.loads(path.read_text())["skinny"] == [layer.name for layer in table.skinny]
    assert main(["layers", *shape, "--", *RESNET]) == 0
    text = capsys.readouterr().out
    assert "layer4.2.conv3" in text
    assert "Median of 1" in text


def test_skinny_layers_are_those_that_do_not_scale() -> None:
    def layer(name: str, small_s: float, large_s: float) -> Layer:
        return Layer(
            name, "Linear", "", 0, (small_s / 2, large_s / 2), (small_s / 2, large_s / 2), 0
        )

    table = LayerTable(
        model="m",
        input_shape=(1,),
        batches=(1, 8),
        repeats=1,
        threads=1,
        layers=(
            layer("scales", 1.0, 8.0),
            layer("nearly", 1.0, 5.0),
            layer("skinny", 1.0, 2.0),
            layer("skinny but tiny", 0.001, 0.002),
        ),
    )
    assert [one.name for one in table.skinny] == ["skinny"]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (["no.such:thing"], "cannot make"),
        (["resnet.model:absent"], "cannot make"),
        (["resnet.model"], "cannot make"),
        (["os:getcwd"], "returns a str"),
        ([RESNET[0], "classes"], "as name=value"),
        ([RESNET[0], "colours=3"], "cannot make"),
        ([], "no model"),
    ],
)
def test_a_model_that_cannot_be_made_is_one_line(model: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        main(["layers", "--input", "3,8,8", "--batch", "1", "--", *model])
    assert "\n" not in str(raised.value)


def test_an_input_that_does_not_fit_is_one_line() -> None:
    with pytest.raises(UsageError, match="does not run on"):
        main(["layers", "--input", "4,8,8", "--batch", "1", "--", *RESNET])
    with pytest.raises(UsageError, match="above 0"):
        parse_shape("3,0,8")
    with pytest.raises(UsageError, match="above 0"):
        parse_shape("three")
