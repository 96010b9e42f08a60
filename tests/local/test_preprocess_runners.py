"""preprocess on the runner that the environment names."""

import copy
import inspect
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from apache_beam.portability.api import beam_job_api_pb2
from apache_beam.runners.portability.local_job_service import LocalJobServicer

from trainyard import events
from trainyard.errors import ConfigurationError, TransientError
from trainyard.spec import recipe as recipes
from trainyard.storage import storage

pytestmark = pytest.mark.usefixtures("warm_processes")


def preprocess(output: Path, beam_options: str) -> dict[str, storage.File]:
    from trainyard.steps.preprocess.run import run

    with storage.stage(str(output), "trainyard.preprocess") as folder:
        run(recipes.load("digits"), folder, beam_options)
    return storage.require(str(output)).files


@pytest.mark.parametrize(
    ("options", "kind", "reason"),
    [
        ("--runner=NoRunner", ConfigurationError, "Unexpected pipeline runner: NoRunner"),
        ("--runner='", ConfigurationError, "No closing quotation"),
        ("--runner=FlinkRunner --flink_version=9", ConfigurationError, "a value that Beam does not allow"),
        ("--runner=PrismRunner --prism_location=/no/prism", ConfigurationError, "/no/prism"),
        ("--runner=FlinkRunner --flink_job_server_jar=/no.jar", ConfigurationError, "/no.jar"),
        ("--runner=PortableRunner", ConfigurationError, "--job_endpoint"),
        ("--runner=PortableRunner --job_endpoint=localhost:1 --job_server_timeout=1", TransientError, "not answer"),
    ],
)
def test_a_runner_that_cannot_start_is_a_fault_of_the_environment(options, kind, reason, tmp_path):
    with pytest.raises(kind, match=f"^beam options '{options.split()[0]}.*{reason}"):
        preprocess(tmp_path / "examples", options)
    assert not (tmp_path / "examples").exists()


def test_options_of_dataflow_reach_beam_and_the_main_session_does_not():
    from apache_beam.options.pipeline_options import GoogleCloudOptions, SetupOptions, StandardOptions

    from trainyard.beam.runner import _options

    flags = "--runner=DataflowRunner --project=p --region=r1 --temp_location=gs://b/tmp --save_main_session"
    options = _options(flags)
    cloud = options.view_as(GoogleCloudOptions)
    assert options.view_as(StandardOptions).runner == "DataflowRunner"
    assert (cloud.project, cloud.region, cloud.temp_location) == ("p", "r1", "gs://b/tmp")
    assert options.view_as(SetupOptions).save_main_session is False


def test_what_beam_remembers_is_what_it_would_find():
    from apache_beam import DoFn
    from apache_beam.options.pipeline_options import StandardOptions
    from apache_beam.transforms import core, userstate

    from trainyard.beam import runner

    class Windowed(DoFn):
        def process(self, element, window=DoFn.WindowParam):
            yield element, window

    states = [DoFn.StateParam(userstate.CombiningValueStateSpec(name, sum)) for name in ("count", "left")]

    class Counting(DoFn):
        def process(self, element, count=states[0]):
            yield element

    class Other(DoFn):
        def process(self, element, left=states[1]):
            yield element

    def inspected():
        functions = (Windowed().process, Windowed.process, len)
        fns = (Windowed(), Counting(), *(core.CallableWrapperDoFn(fn().process) for fn in (Counting, Other)))
        return [core.get_function_args_defaults(function) for function in functions], [
            {spec.name for spec in userstate.get_dofn_specs(fn)[0]} for fn in fns
        ]

    signatures = inspected()
    assert signatures[1] == [set(), {"count"}, {"count"}, {"left"}]
    runner._remember_signatures()
    assert inspected() == inspected() == signatures
    options = runner._options("--runner=DirectRunner")
    options.view_as(StandardOptions).streaming = True
    copied = copy.deepcopy(options)
    options.view_as(StandardOptions).streaming = False
    assert copied.view_as(StandardOptions).streaming is True
    assert copied.get_all_options()["streaming"] is True and options.get_all_options()["streaming"] is False


class Job(LocalJobServicer):
    """Beam's own job server, as Prism a gRPC service whose job ids are their preparations'; notes the deadlines."""

    def __init__(self):
        super().__init__()
        self.deadlines = {}

    def _note(self, context):
        self.deadlines[inspect.stack()[1].function] = context.time_remaining()

    def Prepare(self, request, context=None, timeout=None):
        self._note(context)
        return super().Prepare(request, context, timeout)

    def GetStateStream(self, request, context=None, timeout=None):
        self._note(context)
        yield from super().GetStateStream(request, context, timeout)

    def GetMessageStream(self, request, context=None, timeout=None):
        self._note(context)
        yield from super().GetMessageStream(request, context, timeout)


@pytest.mark.parametrize(("flag", "seconds"), [("", 300), (" --job_server_timeout=70", 70)])
def test_a_pipeline_may_take_longer_than_an_answer_of_its_job_server(flag, seconds):
    import apache_beam as beam

    from trainyard.beam.runner import pipeline

    server = Job()
    port = server.start_grpc_server()
    try:
        options = f"--runner=PortableRunner --environment_type=LOOPBACK --job_endpoint=localhost:{port}{flag}"
        with pipeline(options) as root:
            _ = root | beam.Create([1])
    finally:
        server.stop()
    assert seconds - 60 < server.deadlines.pop("Prepare") < seconds + 60
    years = {call: deadline / (365 * 86_400) for call, deadline in server.deadlines.items()}
    assert years.keys() == {"GetStateStream", "GetMessageStream"}
    assert min(years.values()) > 100, "gRPC's word for no deadline"


def test_workers_that_do_not_see_the_output_folder_are_noticed(tmp_path):
    from trainyard.steps.preprocess.attempt import Attempt
    from trainyard.steps.preprocess.collect import collect
    from trainyard.steps.preprocess.readers.files import Files

    gone = str(tmp_path / "gone")
    sentence = (
        rf"^{gone}: Beam's workers do not see this folder of the step\. Mount one volume .* bucket .* runner direct\.$"
    )
    files = Files(str(tmp_path), {f"{tmp_path}/0/0.png": ("state", 1)})
    server = LocalJobServicer()
    port = server.start_grpc_server()
    try:
        for options in ("", f"--runner=PortableRunner --environment_type=LOOPBACK --job_endpoint=localhost:{port}"):
            with pytest.raises(ConfigurationError, match=sentence):
                collect(recipes.load("digits"), files, None, Attempt(Path(gone), options))
    finally:
        server.stop()
    with pytest.raises(ConfigurationError, match=sentence):
        Attempt(Path(gone)).result("0")


@pytest.mark.skipif(shutil.which("prism") is None, reason="Beam's Prism runner is not on the PATH")
def test_prism_writes_the_same_shards_and_is_gone_afterwards(tmp_path):
    outputs = {}
    for name, options in (("direct", ""), ("prism", f"--runner=PrismRunner --prism_location={shutil.which('prism')}")):
        step = [
            sys.executable,
            "-m",
            "trainyard.steps",
            "preprocess",
            "--recipe",
            "digits",
            f"--output={tmp_path / name}",
        ]
        subprocess.run([*step, f"--beam-options={options}"], check=True)
        outputs[name] = storage.require(str(tmp_path / name)).files
    direct, prism = outputs["direct"], outputs["prism"]
    # TensorFlow numbers the functions of a graph by how many the process traced before.
    assert {name for name in direct if direct[name] != prism.get(name)} <= {"transform/transform_fn/saved_model.pb"}
    assert direct.keys() == prism.keys()
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert shutil.which("prism") not in running


class FlinkJobs(LocalJobServicer):
    """As Flink's, a job server that knows jobs by their option job_name. They run until they are cancelled."""

    def __init__(self):
        super().__init__()
        self.cancelled = []

    def Run(self, request, context=None, timeout=None):
        self._jobs[request.preparation_id].set_state(beam_job_api_pb2.JobState.RUNNING)
        return beam_job_api_pb2.RunJobResponse(job_id=request.preparation_id)

    def GetJobs(self, request, context=None, timeout=None):
        jobs = [
            beam_job_api_pb2.JobInfo(job_id=job, job_name=dict(beam_job._pipeline_options)["beam:option:job_name:v1"])
            for job, beam_job in self._jobs.items()
        ]
        return beam_job_api_pb2.GetJobsResponse(job_info=jobs)

    def Cancel(self, request, context=None, timeout=None):
        self.cancelled.append(request.job_id)
        self._jobs[request.job_id].set_state(beam_job_api_pb2.JobState.CANCELLED)
        return beam_job_api_pb2.CancelJobResponse(state=beam_job_api_pb2.JobState.CANCELLED)


@pytest.fixture
def flink():
    server = FlinkJobs()
    server.options = (
        f"--runner=FlinkRunner --environment_type=LOOPBACK --job_endpoint=localhost:{server.start_grpc_server()}"
    )
    yield server
    server.stop()


def step_on(server: FlinkJobs, output: Path) -> subprocess.Popen[str]:
    """Start the step with its pipeline on `server`, and return it once it says that its job runs."""
    arguments = ["--recipe", "digits", f"--output={output}", f"--beam-options={server.options}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "trainyard.steps", "preprocess", *arguments], stderr=subprocess.PIPE, text=True
    )
    assert any(events.parse(line).get("event") == "beam_job" for line in process.stderr)
    return process


def test_a_steps_job_ends_with_it_and_one_that_a_killed_step_left_is_cancelled_by_the_next(flink, tmp_path):
    killed = step_on(flink, tmp_path / "examples")
    killed.kill()
    killed.communicate()
    assert flink.cancelled == []
    other = step_on(flink, tmp_path / "other")
    assert flink.cancelled == [], "of another output"
    stopped = step_on(flink, tmp_path / "examples")
    left, rest, own = flink._jobs
    assert flink.cancelled == [left]
    for step, job in ((stopped, own), (other, rest)):
        step.send_signal(signal.SIGTERM)
        log = step.communicate()[1]
        assert step.returncode == 143
        assert events.last(log, "beam_job_cancelled") == {"job": job}
    assert flink.cancelled == [left, own, rest]
