//! Why a request was refused, or ended without its answer: the one table of reasons.

use crate::words::worded;

/// Fact of a request that ended early: how many tokens of its answer there were.
pub const COMPLETION_TOKENS: &str = "completion_tokens";

worded! {
    /// Why a request was refused, or ended without its answer.
    Reason {
        /// The target's weights are not there yet.
        TargetLoading = "TARGET_LOADING",
        /// The target ended, or its stream broke, while the request ran.
        TargetGone = "TARGET_GONE",
        /// The stream broke, and the request could not be submitted again: its journal was dropped,
        /// because all journals together had reached their bound.
        ReplayLost = "REPLAY_LOST",
        /// The target that came back serves another model.
        ModelChanged = "MODEL_CHANGED",
        /// The target ended twice while it worked on this request.
        PoisonSuspect = "POISON_SUSPECT",
        /// The target or the supervisor is being started again.
        Restarting = "RESTARTING",
        /// The service was asked to stop and takes nothing new.
        Draining = "DRAINING",
        /// The target's restart budget is spent; the message names the next try.
        CrashLoop = "CRASH_LOOP",
        /// A killed worker left memory of the machine wired. Only a restart of the machine returns it.
        HostMemoryStranded = "HOST_MEMORY_STRANDED",
        /// The admission queue is full.
        QueueFull = "QUEUE_FULL",
        /// The request waited its whole time in the queue.
        QueueWait = "QUEUE_WAIT",
        /// The KV budget can never hold this request.
        KvExhausted = "KV_EXHAUSTED",
        /// The client did not read its stream for too long.
        SlowReader = "SLOW_READER",
        /// The client has as many streams as it may have.
        TooManyStreams = "TOO_MANY_STREAMS",
        /// The bodies and answers of others take all memory that there is for them.
        BodiesFull = "BODIES_FULL",
        /// A message is over the size limit.
        MessageTooLarge = "MESSAGE_TOO_LARGE",
        /// The message of a request did not arrive in time after the headers.
        MessageTimeout = "MESSAGE_TIMEOUT",
        /// The connection is being closed to make room for another; the request was not begun.
        ConnectionClosing = "CONNECTION_CLOSING",
        /// A field has a value that cannot be served.
        InvalidArgument = "INVALID_ARGUMENT",
        /// The prompt does not fit the context.
        PromptTooLong = "PROMPT_TOO_LONG",
        /// The chat template refused the conversation.
        Template = "TEMPLATE",
        /// An image was sent to a model without a vision tower.
        NoVision = "NO_VISION",
        /// An image cannot be decoded or is over a limit; the message names which.
        BadImage = "BAD_IMAGE",
        /// A conversation was sent to a model without a chat template.
        NoChatTemplate = "NO_CHAT_TEMPLATE",
        /// Tools were sent to a model whose chat template knows none.
        NoTools = "NO_TOOLS",
        /// The message belongs to an earlier supervisor (I7).
        StaleTerm = "STALE_TERM",
        /// The message belongs to an earlier life of the worker (I7).
        StaleEpoch = "STALE_EPOCH",
        /// The drafter's weights are not there yet.
        DrafterLoading = "DRAFTER_LOADING",
        /// The drafter did not start; the message has the cause.
        DrafterFailed = "DRAFTER_FAILED",
        /// Target and drafter do not fit each other; the message has the cause.
        DrafterIncompatible = "DRAFTER_INCOMPATIBLE",
        /// The order cannot be carried out in the present state of the drafter.
        DrafterState = "DRAFTER_STATE",
        /// The order cannot be carried out in the present state of the process.
        ProcessState = "PROCESS_STATE",
        /// A client that follows events did not read them in time.
        FellBehind = "FELL_BEHIND",
        /// No such model here.
        UnknownModel = "UNKNOWN_MODEL",
        /// The request's deadline passed.
        DeadlinePassed = "DEADLINE_PASSED",
        /// The first token would come after the request's deadline; refused at arrival.
        DeadlineInfeasible = "DEADLINE_INFEASIBLE",
        /// No API key, or one that is not known.
        Unauthenticated = "UNAUTHENTICATED",
        /// The client or an operator cancelled.
        Cancelled = "CANCELLED",
        /// The model's numbers for this request were not finite; other requests are not affected.
        Numerics = "NUMERICS",
        /// Our bug.
        Bug = "BUG",
    }
}

impl Reason {
    /// Whether a stream that ends for this reason is to be opened again: the process below it is
    /// being started, was started again, or did not know the request.
    pub fn is_interruption(self) -> bool {
        matches!(
            self,
            Reason::TargetLoading
                | Reason::TargetGone
                | Reason::Restarting
                | Reason::StaleTerm
                | Reason::StaleEpoch
        )
    }

    /// Whether the same request may succeed later.
    pub fn retryable(self) -> bool {
        matches!(
            self,
            Reason::TargetLoading
                | Reason::TargetGone
                | Reason::ReplayLost
                | Reason::ModelChanged
                | Reason::Restarting
                | Reason::Draining
                | Reason::CrashLoop
                | Reason::QueueFull
                | Reason::QueueWait
                | Reason::TooManyStreams
                | Reason::BodiesFull
                | Reason::ConnectionClosing
                | Reason::DrafterLoading
        )
    }
}

/// A gRPC code that reasons have, by its number (grpc.io/docs/guides/status-codes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the guide describes each by its name")]
pub enum GrpcCode {
    Cancelled = 1,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl Reason {
    /// The gRPC code.
    pub fn grpc_code(self) -> GrpcCode {
        match self {
            Reason::TargetLoading
            | Reason::TargetGone
            | Reason::ReplayLost
            | Reason::ModelChanged
            | Reason::Restarting
            | Reason::Draining
            | Reason::CrashLoop
            | Reason::HostMemoryStranded
            | Reason::ConnectionClosing
            | Reason::DrafterLoading
            | Reason::DrafterFailed => GrpcCode::Unavailable,
            Reason::QueueFull
            | Reason::QueueWait
            | Reason::KvExhausted
            | Reason::SlowReader
            | Reason::TooManyStreams
            | Reason::BodiesFull
            | Reason::MessageTooLarge
            | Reason::FellBehind => GrpcCode::ResourceExhausted,
            Reason::MessageTimeout | Reason::DeadlinePassed | Reason::DeadlineInfeasible => {
                GrpcCode::DeadlineExceeded
            }
            Reason::InvalidArgument
            | Reason::PromptTooLong
            | Reason::Template
            | Reason::BadImage => GrpcCode::InvalidArgument,
            Reason::NoVision
            | Reason::NoChatTemplate
            | Reason::NoTools
            | Reason::StaleTerm
            | Reason::StaleEpoch
            | Reason::DrafterIncompatible
            | Reason::DrafterState
            | Reason::ProcessState => GrpcCode::FailedPrecondition,
            Reason::UnknownModel => GrpcCode::NotFound,
            Reason::Unauthenticated => GrpcCode::Unauthenticated,
            Reason::Cancelled => GrpcCode::Cancelled,
            Reason::Numerics | Reason::PoisonSuspect | Reason::Bug => GrpcCode::Internal,
        }
    }
}
