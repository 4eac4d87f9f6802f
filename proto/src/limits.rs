//! How many elements a message may have, checked by the strict codec before anything is decoded.
//!
//! An element that takes two bytes on the wire takes 24 to 150 bytes decoded. Without limits a
//! legal message of 16 MiB becomes a gigabyte. The limits of single fields follow from what a
//! request needs; the limits of a whole message bound its memory. Smaller limits of the contract,
//! such as 16 stop strings, stay with the service, which refuses with the request's id.

/// Messages and texts in repeated fields of one message, at all depths together. The largest
/// element, a turn of a conversation, takes 144 bytes. Its parts and texts have allocations of
/// their own. All take at most about 32 MiB. A conversation of 16,384 turns with a part and a tool
/// call each has 49,152 elements.
pub const MAX_ELEMENTS: u32 = 1 << 16;

/// Numbers in repeated fields of one message, at all depths together: 8 MiB of token ids. This is a
/// request with the longest prompt and as many tokens of its answer.
pub const MAX_NUMBERS: u32 = 1 << 21;

/// Token ids of one prompt: the longest context of the published models that are served has
/// 1,048,576 positions.
pub const MAX_TOKEN_IDS: u32 = 1 << 20;

/// Turns of a conversation. A turn takes at least four tokens in every published template, and
/// contexts of 65,536 tokens are long; the longest conversations of coding agents have some
/// thousand turns.
pub const MAX_TURNS: u32 = 1 << 14;

/// Tools of a request, and tool calls in a turn. Other services take 128; their names are
/// compared with one another.
pub const MAX_TOOLS: u32 = 1 << 10;

/// Parts of a turn: some clients send a file as one part for each piece.
pub const MAX_PARTS: u32 = 1 << 12;
/// Token ids and figures of one answer message. A message carries one step, at most a few hundred
/// tokens.
const MAX_STEP: u32 = 1 << 16;
/// Requests that one message between processes speaks of. A gateway takes a few hundred.
const MAX_REQUESTS: u32 = 1 << 16;
/// Stop ids, biases, settings, buckets and the like: a few dozen, at most 1,024 by the contract.
const MAX_FEW: u32 = 1 << 12;

/// Settings of a message: each API key may have a class of its own.
const MAX_SETTINGS: u32 = 16_384;

/// Most elements of a repeated field in one message, by the message's full name and the field's
/// name. A test checks that each repeated field of a service's messages has its row.
pub const FIELDS: &[(&str, &str, u32)] = &[
    ("paceline.v1.ChatRequest", "messages", MAX_TURNS),
    ("paceline.v1.ChatRequest", "tools", MAX_TOOLS),
    ("paceline.v1.Message", "content", MAX_PARTS),
    ("paceline.v1.Message", "tool_calls", MAX_TOOLS),
    ("paceline.v1.TokenIds", "ids", MAX_TOKEN_IDS),
    ("paceline.v1.Sampling", "logit_bias", MAX_FEW),
    ("paceline.v1.Limits", "stop_token_ids", MAX_FEW),
    ("paceline.v1.Limits", "stop", MAX_FEW),
    ("paceline.v1.GenerateResponse", "token_ids", MAX_STEP),
    ("paceline.v1.GenerateResponse", "margins", MAX_STEP),
    ("paceline.v1.GenerateResponse", "logprobs", MAX_STEP),
    ("paceline.v1.GenerateResponse", "tool_calls", MAX_STEP),
    ("paceline.v1.GenerateResponse", "warnings", MAX_STEP),
    ("paceline.v1.TokenLogprobs", "top", MAX_FEW),
    ("paceline.v1.CountTokensResponse", "token_ids", MAX_TOKEN_IDS),
    ("paceline.v1.GetModelResponse", "stop_token_ids", MAX_FEW),
    ("paceline.v1.PolicyResponse", "policy", MAX_FEW),
    ("paceline.v1.ShowSettingsResponse", "settings", MAX_SETTINGS),
    ("paceline.v1.ChangeSettingsRequest", "set", MAX_SETTINGS),
    ("paceline.v1.ChangeSettingsRequest", "unset", MAX_SETTINGS),
    ("paceline.v1.ChangeSettingsResponse", "changes", MAX_SETTINGS),
    ("paceline.v1.StatusResponse", "refused_drafters", MAX_FEW),
    ("paceline.v1.RoutingStatus", "policy", MAX_FEW),
    ("paceline.v1.RoutingStatus", "routes", MAX_FEW),
    ("paceline.v1.RoutingStatus", "by_sequences", MAX_FEW),
    ("paceline.v1.RoutingStatus", "by_context", MAX_FEW),
    ("paceline.v1.RoutingStatus", "step_costs", MAX_FEW),
    ("paceline.internal.v1.ThoughtBudget", "end", MAX_FEW),
    ("paceline.internal.v1.ThoughtEndStep", "ids", MAX_FEW),
    ("paceline.internal.v1.Generation", "prompt_ids", MAX_TOKEN_IDS),
    ("paceline.internal.v1.Generation", "continuation_ids", MAX_TOKEN_IDS),
    ("paceline.internal.v1.Generation", "stop_token_ids", MAX_FEW),
    ("paceline.internal.v1.Generation", "images", MAX_FEW),
    ("paceline.internal.v1.Generation", "ignored_token_ids", MAX_FEW),
    ("paceline.internal.v1.Grammar", "parts", MAX_FEW),
    ("paceline.internal.v1.Grammar", "end_ids", MAX_FEW),
    ("paceline.internal.v1.Image", "scale", MAX_FEW),
    ("paceline.internal.v1.Image", "bias", MAX_FEW),
    ("paceline.internal.v1.SamplingRule", "logit_bias", MAX_FEW),
    ("paceline.internal.v1.TokenBatch", "ids", MAX_STEP),
    ("paceline.internal.v1.TokenBatch", "margins", MAX_STEP),
    ("paceline.internal.v1.TokenBatch", "logprobs", MAX_STEP),
    ("paceline.internal.v1.DescribeResponse", "kv_classes", MAX_FEW),
    ("paceline.internal.v1.RepermitRequest", "changes", MAX_REQUESTS),
    ("paceline.internal.v1.RepermitResponse", "unknown", MAX_REQUESTS),
    ("paceline.internal.v1.SpeculationFigures", "classes", MAX_FEW),
    ("paceline.internal.v1.SpeculationFigures", "by_sequences", MAX_FEW),
    ("paceline.internal.v1.SpeculationFigures", "by_context", MAX_FEW),
    ("paceline.internal.v1.SpeculationFigures", "step_costs", MAX_FEW),
    ("paceline.internal.v1.ClassFigures", "survival", MAX_FEW),
    ("vllm.grpc.engine.SamplingParams", "stop", MAX_FEW),
    ("vllm.grpc.engine.SamplingParams", "stop_token_ids", MAX_FEW),
    ("vllm.grpc.engine.SamplingParams", "logit_bias", MAX_FEW),
    ("vllm.grpc.engine.ChoiceConstraint", "choices", MAX_FEW),
    ("vllm.grpc.engine.TokenizedInput", "input_ids", MAX_TOKEN_IDS),
    ("vllm.grpc.engine.TensorData", "shape", MAX_FEW),
    ("vllm.grpc.engine.MultimodalInputs", "model_specific_tensors", MAX_FEW),
    ("vllm.grpc.engine.MultimodalInputs", "mm_placeholders", MAX_FEW),
    ("vllm.grpc.engine.MultimodalInputs", "mm_hashes", MAX_FEW),
    ("vllm.grpc.engine.MultimodalInputs", "batched_keys", MAX_FEW),
    ("vllm.grpc.engine.MultimodalInputs", "flat_keys", MAX_FEW),
    ("vllm.grpc.engine.MultimodalInputs", "keep_on_cpu_keys", MAX_FEW),
    ("vllm.grpc.engine.MediaRefs", "items", MAX_FEW),
    ("vllm.grpc.engine.GenerateRequest", "extra_mm_inputs", MAX_FEW),
    ("vllm.grpc.engine.OutputLogProbs", "token_logprobs", MAX_TOKEN_IDS),
    ("vllm.grpc.engine.OutputLogProbs", "token_ids", MAX_TOKEN_IDS),
    ("vllm.grpc.engine.OutputLogProbs", "top_logprobs", MAX_TOKEN_IDS),
    ("vllm.grpc.engine.InputLogProbs", "token_logprobs", MAX_FEW),
    ("vllm.grpc.engine.InputLogProbs", "token_ids", MAX_FEW),
    ("vllm.grpc.engine.InputLogProbs", "top_logprobs", MAX_FEW),
    ("vllm.grpc.engine.TopLogProbs", "values", MAX_FEW),
    ("vllm.grpc.engine.TopLogProbs", "token_ids", MAX_FEW),
    ("vllm.grpc.engine.GenerateStreamChunk", "token_ids", MAX_STEP),
    ("vllm.grpc.engine.GenerateComplete", "output_ids", MAX_TOKEN_IDS),
    ("vllm.grpc.engine.MediaIdentity", "prompt_token_ids", MAX_FEW),
    ("vllm.grpc.engine.MediaIdentity", "extra_mm_inputs", MAX_FEW),
    ("vllm.grpc.engine.EmbedResponse", "embedding", MAX_FEW),
    ("vllm.grpc.engine.AbortRequest", "request_ids", MAX_FEW),
    ("vllm.grpc.engine.GetModelInfoResponse", "architectures", MAX_FEW),
    ("vllm.grpc.engine.GetModelInfoResponse", "eos_token_ids", MAX_FEW),
    ("vllm.grpc.engine.GetLoadsRequest", "include", MAX_FEW),
    ("vllm.grpc.engine.GetLoadsResponse", "loads", MAX_FEW),
    ("smg.grpc.common.KvEventBatch", "events", MAX_FEW),
    ("smg.grpc.common.KvBlocksStored", "blocks", MAX_FEW),
    ("smg.grpc.common.KvBlocksRemoved", "block_hashes", MAX_FEW),
    ("smg.grpc.common.KvBlock", "token_ids", MAX_FEW),
    ("smg.grpc.common.KvBlock", "extra_keys", MAX_FEW),
    ("smg.grpc.common.StartProfileRequest", "activities", MAX_FEW),
];
