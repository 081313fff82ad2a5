"""The live view: an output a picture, redrawn in place when a log has grown."""

import io
import json

import matplotlib
import matplotlib.pyplot as plt
import pytest
from IPython.display import Image
from tiny_runs import tiny_params

from califkit.exhibits import live
from califkit.exhibits.plots.training import training_curves, zone_shares
from califkit.exhibits.training import training_table
from califkit.runs.folders import LOG, MANIFEST, open_run
from califkit.runs.jsonl import write_json

matplotlib.use("Agg")

ZONES = ("below", "inside", "above", "reversed", "unbounded")


def log_row(step: int) -> dict:
    shares = dict.fromkeys((f"zone/{zone}" for zone in ZONES), 0.2)
    means = {"r_ver": 0.1 * step, "reward": 0.1 * step, "loglik": -step, "tokens": 9.0}
    return {"step": step, **means, "distinct_2": 0.9, "seconds": 1.0, **shares}


class Screen:
    """Stands for a notebook's output area: which outputs there are, and what each shows now."""

    def __init__(self) -> None:
        self.outputs: list[Image] = []
        self.drawn = 0

    def display(self, image: Image, display_id: bool):
        assert display_id
        self.outputs.append(image)
        self.drawn += 1
        return Handle(self, len(self.outputs) - 1)


class Handle:
    def __init__(self, screen: Screen, number: int) -> None:
        self.screen, self.number = screen, number

    def update(self, image: Image) -> None:
        self.screen.outputs[self.number] = image
        self.screen.drawn += 1


@pytest.fixture
def screen(monkeypatch) -> Screen:
    screen = Screen()
    monkeypatch.setattr("califkit.exhibits.live.display", screen.display)
    return screen


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIFKIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(live, "_SHARE", 1e9)  # no pause between drawings
    stages = tiny_params(tmp_path).settings.train_stages()
    return [open_run("tiny", stage) for stage in stages]


@pytest.fixture
def view(runs) -> live.LiveTraining:
    return live.LiveTraining("tiny", [run.stage for run in runs])


def append(run, text: str) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    with (run.folder / LOG).open("a") as file:
        file.write(text)


def test_the_outputs_are_redrawn_when_a_log_has_grown(runs, view, screen):
    view()
    assert screen.outputs == []  # nothing to show yet
    append(runs[0], json.dumps(log_row(1)) + "\n")
    view()
    view()
    view()
    assert (len(screen.outputs), screen.drawn) == (2, 2)
    first = [output.data for output in screen.outputs]
    append(runs[0], json.dumps(log_row(2)) + "\n")
    append(runs[1], json.dumps(log_row(1)) + "\n")
    view()
    assert (len(screen.outputs), screen.drawn) == (2, 4)
    assert all(now.data != before for now, before in zip(screen.outputs, first, strict=True))


def test_a_row_that_is_being_written_is_left_for_later(runs, view, screen):
    first, second = (json.dumps(log_row(step)) + "\n" for step in (1, 2))
    append(runs[0], first + second[:20])
    view()
    assert screen.drawn == 2
    append(runs[0], second[20:])
    view()
    assert screen.drawn == 4


def test_the_pictures_hold_curves_and_zones(runs, view, screen):
    append(runs[0], json.dumps(log_row(1)) + "\n" + json.dumps(log_row(2)) + "\n")
    view()
    steps = training_table(runs[:1])
    figures = [training_curves(steps, steps), zone_shares(steps)]
    for output, axes in zip(screen.outputs, figures, strict=True):
        height, width = plt.imread(io.BytesIO(output.data)).shape[:2]
        assert (width, height) == pytest.approx(tuple(axes[0].figure.bbox.size), abs=2)
    plt.close("all")


def test_no_figure_stays_open_to_be_shown_a_second_time(runs, view, screen):
    plt.close("all")
    append(runs[0], json.dumps(log_row(1)) + "\n")
    view()
    assert plt.get_fignums() == []


def test_drawing_takes_a_small_share_of_the_time_but_the_end_is_shown(
    runs, view, screen, monkeypatch
):
    monkeypatch.setattr(live, "_SHARE", 0.001)
    for step in (1, 2, 3):
        append(runs[0], json.dumps(log_row(step)) + "\n")
        view()
    assert screen.drawn == 2
    append(runs[1], json.dumps(log_row(1)) + "\n")
    for run in runs:
        write_json(run.folder / MANIFEST, {})
    view()
    assert screen.drawn == 4


def test_a_run_that_begins_again_is_followed(runs, view, screen):
    """After a kill the rows behind the last checkpoint are cut."""
    append(runs[0], "".join(json.dumps(log_row(step)) + "\n" for step in (1, 2, 3)))
    view()
    (runs[0].folder / LOG).write_text(json.dumps(log_row(1)) + "\n")
    view()
    assert (len(screen.outputs), screen.drawn) == (2, 4)
