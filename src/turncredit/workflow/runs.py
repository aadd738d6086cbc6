"""Run folders of a scale, and the collected runs that its figures, tables and audit are made from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from turncredit.config.credit_bench import COLLECTED as BENCH_COLLECTED
from turncredit.config.credit_bench import CREDIT_BENCH
from turncredit.config.load import Scale
from turncredit.config.paths import run_key
from turncredit.errors import ConfigError, DataError
from turncredit.reporting.catalogue import BENCH_FIGURES, FIGURES, TABLES, UNTRAINED
from turncredit.workflow.request import WorkflowRequest

# The files of an experiment's collected runs
COLLECTED = ("metrics.csv", "evaluation.csv.gz", "manifests.json", "episodes.jsonl", "SHA256SUMS")
IMPORTED = Path("results/imported")
Source = Literal["fresh", "shipped"]


@dataclass(frozen=True)
class ScaleRuns:
    """The runs of one scale in one call of the workflow. All paths are relative to the clone.

    Attributes:
        scale: its configuration.
        request: base policies, seeds, requested experiments, and whose runs are plotted.
        root: the clone.
    """

    scale: Scale
    request: WorkflowRequest
    root: Path = Path()
    # Decided once: Snakemake evaluates parameters again after training, when more runs exist than at planning.
    _sources: dict[str, Source | None] = field(default_factory=dict)

    @property
    def experiments(self) -> list[str]:
        """``untrained`` (evaluations of the untrained policies) and every experiment of the scale."""
        return [UNTRAINED, *self.scale.experiments]

    @property
    def bases(self) -> int:
        """Base policies that every arm is trained from."""
        return self.request.bases or self.scale.base_policies

    def seeds(self, experiment: str) -> int:
        """Training seeds of each arm of an experiment, for each base policy."""
        seeds = self.request.seeds
        return (seeds.get(experiment) if isinstance(seeds, Mapping) else seeds) or self.scale.seeds_of(experiment)

    def untrained_policies(self) -> list[str]:
        """Policies that are evaluated and not trained: those without RL training, and pretrained checkpoints.

        A checkpoint that is not ``in_all`` counts once its evaluation exists.
        """
        expert = [] if self.scale.warm_start is None else ["expert"]
        folder = self.root / "results" / self.scale.name / UNTRAINED
        return ["initial", *expert, "closed_book", *(
            name for name, found in self.scale.checkpoints.items()
            if found.in_all or (folder / name / "base-0" / "evaluation.csv").exists())]

    def folders(self, experiment: str) -> list[str]:
        """Folders of an experiment's runs; an arm with ``same_as`` shares the other arm's runs."""
        if experiment == UNTRAINED:
            return [f"results/{self.scale.name}/untrained/{policy}/base-{base}" for policy in self.untrained_policies()
                    for base in range(1 if policy in self.scale.checkpoints else self.bases)]
        arms = [self.scale.identical(experiment, arm) for arm in self.scale.experiments[experiment].arms]
        return [self._folder(where, run_key(arm, base, seed)) for where, arm in arms
                for base in range(self.bases) for seed in range(self.seeds(experiment))]

    def _folder(self, experiment: str, key: str) -> str:
        run = f"{self.scale.name}/{experiment}/{key}"
        imported = (self.root / IMPORTED / run / "manifest.json").exists()
        return f"{IMPORTED if imported else 'results'}/{run}"

    def files(self, experiment: str, name: str) -> list[str]:
        """One file of every run. Untrained policies have only ``evaluation.csv``; imported runs may lack metrics."""
        if experiment == UNTRAINED and name != "evaluation.csv":
            return []
        paths = [f"{folder}/{name}" for folder in self.folders(experiment)]
        return [path for path in paths if name != "metrics.csv" or not Path(path).is_relative_to(IMPORTED)
                or (self.root / path).exists()]

    def is_shipped(self, experiment: str) -> bool:
        """Whether the clone holds committed runs of an experiment.

        Raises:
            DataError: some of their files are missing.
        """
        folder = Path("results/shipped", self.scale.name, experiment)
        if not (self.root / folder).exists():
            return False
        for file in (folder / name for name in COLLECTED):
            if not (self.root / file).exists():
                raise DataError(f"{file}: missing from the shipped runs",
                                f"git checkout -- {file}, or --config runs=fresh")
        return True

    def _is_complete(self, experiment: str) -> bool:
        """Whether every run of an experiment was evaluated here."""
        return all((self.root / folder / "evaluation.csv").exists() for folder in self.folders(experiment))

    def source(self, experiment: str) -> Source | None:
        """Whose runs of an experiment are plotted; None: it was not requested, and no run of it exists.

        Raises:
            DataError: ``runs=shipped``, and none are; or shipped files are missing.
        """
        if experiment not in self._sources:
            self._sources[experiment] = self._choose_source(experiment)
        return self._sources[experiment]

    def _choose_source(self, experiment: str) -> Source | None:
        requested = experiment == UNTRAINED or self.request.includes(experiment)
        if self.request.runs == "shipped":
            if requested and not self.is_shipped(experiment):
                raise DataError(f"results/shipped/{self.scale.name}/{experiment}: no runs are shipped",
                                "use --config runs=auto")
        elif self._is_complete(experiment) or (
                requested and (self.request.runs == "fresh" or not self.is_shipped(experiment))):
            return "fresh"
        return "shipped" if self.is_shipped(experiment) else None

    def bench_folders(self) -> list[str]:
        """Folders of the credit bench's measurements: every checkpoint of the first base policies."""
        bases = min(self.bases, self.scale.credit_bench.base_policies or self.bases)
        return [f"results/{self.scale.name}/{CREDIT_BENCH}/base-{base}/{checkpoint}"
                for base in range(bases) for checkpoint in self.scale.credit_bench.checkpoints]

    def bench(self) -> str:
        """Folder of the collected measurements that the bench's figures are drawn from.

        Fresh ones if they are here, if they are requested or if none are shipped; else the shipped ones.

        Raises:
            DataError: ``runs=shipped``, and none are.
        """
        if CREDIT_BENCH not in self._sources:
            fresh, shipped = (self.root / folder / self.scale.name / CREDIT_BENCH / BENCH_COLLECTED[0]
                              for folder in ("results", "results/shipped"))
            if self.request.runs == "shipped" and not shipped.exists():
                raise DataError(f"{shipped.parent}: no measurements are shipped", "use --config runs=auto")
            wanted = self.request.runs == "fresh" or (self.request.runs == "auto" and fresh.exists())
            self._sources[CREDIT_BENCH] = "fresh" if wanted or not shipped.exists() else "shipped"
        root = "results/shipped" if self._sources[CREDIT_BENCH] == "shipped" else "results"
        return f"{root}/{self.scale.name}/{CREDIT_BENCH}"

    def bench_files(self) -> list[str]:
        """The files in that folder."""
        return [f"{self.bench()}/{file}" for file in BENCH_COLLECTED]

    def bench_pages(self) -> list[str]:
        """Names of the bench's figures that this scale can have."""
        return [name for name, uses in BENCH_FIGURES.items()
                if {*uses} - {CREDIT_BENCH} <= self.scale.experiments.keys()]

    def collected(self, experiments: Iterable[str] | None = None) -> list[str]:
        """Folders of the collected runs of experiments (None: of all); those without a source are left out."""
        roots = {"fresh": f"results/{self.scale.name}", "shipped": f"results/shipped/{self.scale.name}"}
        known = [name for name in (self.experiments if experiments is None else experiments)
                 if name in self.experiments]
        return [f"{roots[source]}/{name}" for name in known if (source := self.source(name))]

    def collected_files(self, experiments: Iterable[str] | None = None) -> list[str]:
        """The files in those folders."""
        return [f"{folder}/{file}" for folder in self.collected(experiments) for file in COLLECTED]

    def page_inputs(self, reads: Collection[str]) -> list[str]:
        """The collected files that a figure or table is made from.

        Raises:
            ConfigError: it reads experiments, and none of them has runs or was requested.
        """
        files = self.collected_files(reads)
        if reads and not files:
            raise ConfigError(f"no runs of {', '.join(reads)} at scale {self.scale.name!r} exist, and this call does "
                              "not request them", "add them to --config experiments=..., or leave that key out")
        return files

    def pages(self, catalogue: Mapping[str, Collection[str]], of: str | None = None) -> list[str]:
        """Names of the figures or tables that have runs here, or need none.

        Args:
            catalogue: name -> experiments that it reads.
            of: keep those that read this experiment.
        """
        reads = {name: set(uses) - {UNTRAINED} for name, uses in catalogue.items()}
        return [name for name, used in reads.items()
                if (not used or self.collected(used)) and (of is None or of in used)]

    def page_files(self, of: str | None = None) -> list[str]:
        """One file of each figure and table (its rule makes the others too), and the audit."""
        return [*(f"figures/{self.scale.name}/{name}.pdf" for name in self.pages(FIGURES, of)),
                *(f"paper_tables/{self.scale.name}/{name}.csv" for name in self.pages(TABLES, of)),
                f"paper_tables/{self.scale.name}/audit.csv"]
