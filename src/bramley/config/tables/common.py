"""Options that ``bramley serve`` and ``vllm-mlx serve`` share."""

from bramley.config.kinds import Choice, Flag, Integer, Json, Number, Path, Text, Texts
from bramley.config.row import BRAMLEY, VLLM_MLX, Option

DTYPES = ("auto", "float32", "float16", "bfloat16")
LEVELS = ("debug", "info", "warning", "error")

# fmt: off
ROWS = (
    Option("model", Path("MODEL"), "Directory of a model in MLX or Hugging Face format.",
           group="Model", to="model", positional=True, required=(VLLM_MLX,), unlike={BRAMLEY: ""}),
    Option("served-model-name", Texts("NAME"), "Name under which requests ask for the model; give several to accept "
           "each. Not given: the directory's name.",
           (), group="Model", to="service.served_names"),
    Option("context-length", Integer(0), "Longest prompt and answer together, in tokens; at most the model's own, "
           "which 0 stands for.",
           0, group="Model", to="engine.context_length"),

    Option("host", Text("ADDRESS", "an address or host name"), "Address to listen on.",
           "127.0.0.1", group="Server", to="host"),
    Option("port", Integer(0, 65535), "Port to listen on; 0 lets the system choose.",
           8000, group="Server", to="port"),
    Option("timeout", Number(0, above=True), "Seconds a request may make no progress, in the queue or "
           "in the model, before it is answered with a timeout.",
           300.0, group="Server", to="service.timeout_s"),
    Option("shutdown-timeout", Number(0), "Seconds that running requests may go on after SIGTERM or Ctrl-C.",
           3.0, group="Server", to="shutdown_timeout_s"),
    Option("stream-interval", Integer(1), "Tokens per streamed chunk.",
           1, group="Server", to="api.stream_interval"),
    Option("stream-buffer-tokens", Integer(1), "Tokens a client may fall behind its own stream before it is cut off.",
           8192, group="Server", to="service.stream_buffer_tokens"),
    Option("stall-timeout", Number(0, above=True), "Seconds a busy worker may make no progress before it is restarted.",
           120.0, group="Server", to="supervisor.stall_s"),
    Option("hang-timeout", Number(0, above=True), "Seconds a worker may not answer at all before it is restarted.",
           10.0, group="Server", to="supervisor.hang_s"),
    Option("log-level", Choice(LEVELS), "Least severe message that is logged.",
           "info", group="Server", to="log_level"),

    Option("api-key", Texts("KEY"), "Key that requests must carry; give several to accept each.",
           (), group="Access", secret=True),
    Option("api-key-file", Path("FILE"), "File with one key per line, # for comments; they count beside --api-key's.",
           group="Access"),

    Option("max-tokens", Integer(1), "Length of an answer whose request names none. Not given: as the context allows.",
           group="Generation", to="service.defaults.max_tokens", unlike={VLLM_MLX: 32768}),
    Option("max-request-tokens", Integer(1), "Longest answer a request may ask for. Not given: as the context allows.",
           group="Generation", to="service.defaults.max_request_tokens", unlike={VLLM_MLX: 32768}),
    Option("default-temperature", Number(0, 2), "Temperature of a request that names none.",
           group="Generation", to="service.defaults.temperature"),
    Option("default-chat-template-kwargs", Json(), "Variables for the model's chat template, as in "
           "{\"enable_thinking\": false}; a request's own go before them.",
           {}, group="Generation", to="api.template_kwargs"),
    Option("default-top-p", Number(0, 1, above=True), "top_p of a request that names none.",
           group="Generation", to="service.defaults.top_p"),

    Option("max-num-seqs", Integer(1), "Sequences generated at once; others wait in the queue.",
           64, group="Scheduling", unlike={VLLM_MLX: 256}),

    Option("max-queue", Integer(0), "Requests that may wait for a place; one more is answered with 429.",
           1024, group="Scheduling", to="engine.max_queue"),
    Option("target-gap-ms", Number(0, above=True), "Milliseconds that a running answer may wait for its next token "
           "while prompts are read.",
           200.0, group="Scheduling", to="engine.target_gap_ms"),

    Option("dtype", Choice(DTYPES), "Type the model computes in; auto: float32 on a CPU, the model's own on a GPU.",
           "auto", group="Computing", to="compute.dtype"),
    Option("threads", Integer(0), "Threads of the matrix library on a CPU; 0: one less than there are "
           "cores, but two of two.",
           0, group="Computing", to="compute.threads"),
    Option("blas", Choice(("auto", "off")), "Faster matrix products on Linux without a GPU; off: MLX's own.",
           "auto", group="Computing", to="compute.blas"),
    Option("cache-dir", Path("DIR"), "Where converted models and compiled helpers are kept. Not given: bramley in "
           "XDG_CACHE_HOME, else in ~/Library/Caches (macOS) or ~/.cache.",
           group="Computing"),

    Option("config", Path("FILE"), "YAML file with options; a flag or an environment variable goes before it.",
           group="Command"),
    Option("check", Flag(), "Print the settings, where each comes from and a memory plan, then exit.",
           False, group="Command"),
)
# fmt: on
