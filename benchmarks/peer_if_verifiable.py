"""Times the package if-verifiable as a black box; run by verifiers.py in an environment of its own.

    python peer_if_verifiable.py CASES.json PUNKT_FOLDER

Writes the Punkt tables of the package ``punkt`` as NLTK data to PUNKT_FOLDER, as nothing can be
downloaded here. The last line printed is JSON: suite -> id -> CPU seconds, null where it raised.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def write_punkt(folder: Path) -> None:
    """NLTK's data package ``punkt_tab``, English, from the tables of ``punkt``."""
    import punkt
    from nltk.tokenize.punkt import PunktParameters, save_punkt_params

    tables = punkt.load_model("english")
    params = PunktParameters()
    params.abbrev_types = set(tables.abbrev_types)
    params.collocations = {tuple(pair) for pair in tables.collocations}
    params.sent_starters = set(tables.sent_starters)
    params.ortho_context.update(tables.ortho_context)
    target = folder / "tokenizers" / "punkt_tab" / "english"
    target.mkdir(parents=True, exist_ok=True)
    save_punkt_params(params, str(target))


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text())
    write_punkt(Path(sys.argv[2]))
    from if_verifiable import IFBenchSample, IFEvalSample, evaluate_output_for_sample

    samples = {"ifeval": IFEvalSample, "ifbench": IFBenchSample}
    result: dict[str, dict[str, float | None]] = {suite: {} for suite in cases}
    for suite, rows in cases.items():
        seconds = result[suite]
        warm = set()
        for id, kwargs, response in rows:
            if seconds.get(id, 0.0) is None:
                continue
            sample = samples[suite](
                key=0, prompt="", instruction_id_list=[id], kwargs=[dict(kwargs)]
            )
            try:
                if id not in warm:
                    evaluate_output_for_sample(suite, sample, "Warm up. Is it on? Yes!")
                    warm.add(id)
                start = time.process_time()
                evaluate_output_for_sample(suite, sample, response)
                seconds[id] = seconds.get(id, 0.0) + time.process_time() - start
            except Exception as error:  # Whatever a black box raises: the id is left out.
                print(f"{id}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
                seconds[id] = None
    print(json.dumps(result))


if __name__ == "__main__":
    main()
