"""Commands of the pages that `test_commands.py` does not run, each with the reason."""

# A glob over the command -> why it is not run there, and what runs it instead.
ELSEWHERE = {
    "python3 -m venv .venv && *": "installs; .ci/run runs the tests' one as it stands, and "
    "ci/wheel_check.sh installs the package into an empty environment",
    "pip install --no-deps sglang==*": "installs; .ci/run does so",
    "python -m pip install build": "installs",
    "python -m build ../release": "needs the network; tests/unit/test_packaging.py builds both",
    "git clone . ../release": "writes beside the repository",
    "bash ci/wheel_check.sh *": "installs gigabytes; part of a release",
    "verify-attn compile *": "takes a minute; .ci/run runs it, tests/unit/test_compile.py a part",
    "verify-attn run": "takes minutes; tests/report/test_run.py runs it with fewer cases",
    "verify-attn run --quick": "takes a minute; tests/report/test_run.py runs it with fewer cases",
    "verify-attn run --out today": "as above",
    "verify-attn report today/*": "reads what the one before wrote; docs/report.md's are run",
    "flock * verify-attn run sm120 --out blackwell": "a GPU's record; the tutorial's run is run",
    "tar czf blackwell.tar.gz blackwell": "packs what the command before it wrote",
    "verify-attn bench sm120 *": "needs the card; "
    "tests/perf/test_projection_command.py scripts one",
    "verify-attn roofline *--project *": "needs the H200's record; "
    "tests/perf/test_projection_command.py makes one up",
    "python benchmarks/project_floors.py *": "rewrites its own page; "
    "tests/perf/test_projection_floors.py runs it elsewhere",
    "python -m tests.kernels.cuda_on_cpu.fuzz *": "takes long; "
    "tests/kernels/test_sm120_on_cpu.py runs a few of its cases",
    "pytest -m gpu *": "needs a GPU; tests/unit/test_plugin.py tests the option without",
    'pytest -n 2 -m "gpu and not perf" *': "needs a GPU; part of ci/gpu.yml",
    "pytest *-m perf *": "needs a GPU; tests/perf/test_pytest_perf.py runs such lines on a "
    "scripted one",
    "pytest tests/kernels/test_known_defects.py": "it is a test of this repository",
    "verify-attn check sglang-*": "needs SGLang's wheel; tests/kernels/test_known_defects.py",
    "verify-attn serve k2.6-rank *": "needs a GPU of 24 GB; tests/engine/test_presets.py",
    "verify-attn serve path/to/model": "needs a model; tests/engine/test_serve.py writes a small "
    "one",
    "verify-attn serve --kernel *": "tests/engine/test_serve.py serves a user's kernel",
    "torchrun *": "tests/engine/test_parallel.py runs two ranks",
    "python -m benchmarks.report_load *": "takes a minute of a browser's time; "
    "tests/report/test_browser.py",
    "git worktree add --detach ../records && *": "writes beside the repository; ci/keep.sh does "
    "the same, and tests/unit/test_ci_files.py runs that",
    "cp ../run/bench.json *": "part of the same",
    'git add . && git commit -m "A record" && *': "part of the same",
}
