"""The folders and files that tests read."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
"""The repository."""
FIXTURES = TESTS / "fixtures"
GOLDENS = FIXTURES / "goldens"
"""Numbers of other implementations."""
CASE_FOLDER = FIXTURES / "cases"
"""Checkpoints, by origin."""
CORPUS = CASE_FOLDER / "corpus"
WILD = CASE_FOLDER / "wild"
FEATURES = CASE_FOLDER / "features"
PACKAGES = CASE_FOLDER / "packages"
KERAS = CASE_FOLDER / "keras"
OBJECTS = CASE_FOLDER / "objects"
SCOPED = CASE_FOLDER / "graphs" / "scoped"
PLAIN_OPS = CASE_FOLDER / "graphs" / "plain_ops"
NATIVE_GRAPHS = CASE_FOLDER / "graphs" / "native_graphs"
ESTIMATORS = CASE_FOLDER / "estimators"
STRATEGIES = CASE_FOLDER / "strategies"
GAN = CASE_FOLDER / "several" / "gan"
MULTI = CASE_FOLDER / "several" / "multi"
STORIES = CASE_FOLDER / "stories"
RESULTS = TESTS / "test_bench" / "data"
"""Recorded results of the benchmark."""
