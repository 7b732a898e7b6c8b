"""Options of ``vllm-mlx serve`` alone: the flags of the command whose name it takes, with their types and defaults."""

from functools import partial

from bramley.config.kinds import Choice, Flag, Integer, Number, Path, Text
from bramley.config.row import VLLM_MLX, NoEffect, NotYet, Option, Refused

TOOL_PARSERS = (
    "auto", "mistral", "qwen", "qwen3_coder", "llama", "hermes", "harmony", "gpt-oss", "deepseek", "kimi", "granite",
    "nemotron", "xlam", "functionary", "gemma4", "glm47", "minimax",
)  # fmt: skip
REASONING_PARSERS = ("qwen3", "deepseek_r1", "gpt_oss", "harmony", "gemma4", "glm4")

MTP = "most converted models carry no multi-token-prediction heads, and each kind needs a forward pass of its own"
SPECPREFILL = "with prompt tokens left out the answer is no longer the model's answer to the prompt"
REMOTE_CODE = "code that comes with a model is never run"

PREFIX = NotYet("the prefix cache")
QUANTIZED = NotYet("the quantized KV cache")
DISK = NotYet("the prefix cache on disk")
PAGED = NotYet("the block-wise prefix cache")
SPEECH = NotYet("speech and transcription")
TOOLS = NotYet("tool calling")
DOWNLOAD = NotYet("downloading models")

_row = partial(Option, dialects=(VLLM_MLX,))

# fmt: off
ROWS = (
    _row("continuous-batching", Flag(negatable=True), "Generate several sequences at once, not one after the other.",
         False, group="Scheduling"),
    _row("completion-batch-size", Integer(1), "Sequences generated at once, beside --max-num-seqs: the smaller counts.",
         group="Scheduling"),
    _row("prefill-batch-size", Integer(1), "Prompts computed together.",
         8, group="Scheduling", status=NoEffect(
             "a step's prompt tokens are limited in total, however many prompts they belong to")),
    _row("prefill-step-size", Integer(1), "Prompt tokens computed per step, all prompts together. Not given: as suits "
         "the device.",
         group="Scheduling"),
    _row("chunked-prefill-tokens", Integer(0), "As --prefill-step-size, the smaller counts; 0: not given.",
         0, group="Scheduling"),

    _row("enable-prefix-cache", Flag(), "Reuse the computed beginning of earlier prompts.",
         True, status=NotYet("the prefix cache", neutral=False)),
    _row("disable-prefix-cache", Flag(), "Compute every prompt from its beginning.",
         False, status=NoEffect("there is no prefix cache in this version, so every prompt is computed as it is")),
    _row("prefix-cache-size", Integer(1), "Prompts kept in the prefix cache.", 100, status=PREFIX),
    _row("cache-memory-mb", Integer(1), "Memory of the prefix cache.", status=PREFIX),
    _row("cache-memory-percent", Number(0, 1), "Memory of the prefix cache as a share of all.", 0.2, status=PREFIX),
    _row("no-memory-aware-cache", Flag(), "Limit the prefix cache by entries alone.", False, status=PREFIX),
    _row("use-paged-cache", Flag(), "Keep the prefix cache in blocks.", False, status=PAGED),
    _row("paged-cache-block-size", Integer(1), "Tokens per block.", 64, status=PAGED),
    _row("max-cache-blocks", Integer(1), "Blocks kept.", 1000, status=PAGED),
    _row("kv-cache-quantization", Flag(), "Keep cached keys and values in fewer bits.", False, status=QUANTIZED),
    _row("kv-cache-quantization-bits", Integer(4, 8, only=(4, 8)), "Bits per value.", 8, status=QUANTIZED),
    _row("kv-cache-quantization-group-size", Integer(1), "Values per scale.", 64, status=QUANTIZED),
    _row("kv-cache-min-quantize-tokens", Integer(0), "Shortest prompt that is quantized.", 256, status=QUANTIZED),
    _row("ssd-cache-dir", Path("DIR"), "Directory of the prefix cache on disk.", status=DISK),
    _row("ssd-cache-max-gb", Number(0), "Size of the prefix cache on disk.", 10.0, status=DISK),
    _row("warm-prompts", Path("FILE"), "Prompts computed at start.", status=PREFIX),
    _row("gpu-memory-utilization", Number(0, 1, above=True), "Share of the GPU's memory that may be used.",
         0.9, status=NotYet("a limit on GPU memory")),

    _row("mllm", Flag(), "Treat the model as one that sees images.", False, status=NotYet("image input")),
    _row("mllm-prefill-step-size", Integer(0), "Prompt tokens per step of such a model.",
         0, status=NotYet("image input")),
    _row("mcp-config", Path("FILE"), "MCP servers whose tools are offered.", status=NotYet("MCP")),
    _row("enable-auto-tool-choice", Flag(), "Let the model decide to call tools.", False, status=TOOLS),
    _row("tool-call-parser", Choice(TOOL_PARSERS), "Format of the model's tool calls.", status=TOOLS),
    _row("reasoning-parser", Choice(REASONING_PARSERS), "Format of the model's reasoning.",
         status=NotYet("separating reasoning from the answer")),
    _row("embedding-model", Text("MODEL"), "Model for embeddings.", status=NotYet("an embedding model")),
    _row("rerank-model", Text("MODEL"), "Model for reranking.", status=NotYet("a reranking model")),
    _row("max-audio-upload-mb", Integer(1), "Largest sound file of a transcription.", 25, status=SPEECH),
    _row("max-tts-input-chars", Integer(1), "Longest text that is spoken.", 4096, status=SPEECH),
    _row("rate-limit", Integer(0), "Requests a minute per client; 0: no limit.", 0, status=NotYet("a rate limit")),
    _row("enable-metrics", Flag(), "Serve /metrics.", False, status=NotYet("the metrics page")),

    _row("offline", Flag(negatable=True), "Use the network for nothing but requests.",
         False, status=NoEffect("a model is a local directory, and nothing is ever downloaded")),
    _row("download-timeout", Integer(1), "Seconds a download may take.", 300, status=DOWNLOAD),
    _row("download-retries", Integer(0), "Further attempts at a download.", 3, status=DOWNLOAD),
    _row("trust-remote-code", Flag(negatable=True), "Run code that comes with the model.",
         False, status=Refused(REMOTE_CODE)),

    _row("enable-mtp", Flag(), "Draft with the model's multi-token-prediction heads.", False, status=Refused(MTP)),
    _row("mtp-num-draft-tokens", Integer(1), "Tokens drafted per step.", 1, status=Refused(MTP)),
    _row("mtp-optimistic", Flag(), "Take drafted tokens unchecked.", False, status=Refused(MTP)),
    _row("specprefill", Flag(), "Compute only the prompt tokens a draft model finds important.",
         False, status=Refused(SPECPREFILL)),
    _row("specprefill-threshold", Integer(0), "Shortest prompt this is done with.", 8192, status=Refused(SPECPREFILL)),
    _row("specprefill-keep-pct", Number(0, 1), "Share of the prompt that is kept.", 0.3, status=Refused(SPECPREFILL)),
    _row("specprefill-draft-model", Text("MODEL"), "The draft model.", status=Refused(SPECPREFILL)),
)
# fmt: on
