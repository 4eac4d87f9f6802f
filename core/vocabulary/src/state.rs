//! States of processes, workers and links, as reports name them.

use crate::words::worded;

worded! {
    /// State of a process as the supervisor judges it; the public one of `status`.
    ProcessState {
        /// Not configured.
        Absent = "absent",
        /// Not running, on purpose.
        Stopped = "stopped",
        /// Spawned; nothing received yet.
        Starting = "starting",
        /// Reading its weights.
        Loading = "loading",
        /// Serving.
        Ready = "ready",
        /// No heartbeat, or no progress: gets no new requests.
        Suspect = "suspect",
        /// Finishing what runs; takes nothing new.
        Draining = "draining",
        /// Waiting before the next start.
        BackingOff = "backing_off",
        /// The restart budget is spent; the reason names the next try.
        Failed = "failed",
    }
}

worded! {
    /// Activity that a worker reports.
    WorkerPhase {
        /// Reading weights.
        Loading = "loading",
        /// No sequence: a step counter that stands still is right.
        Idle = "idle",
        /// In a step with prompt rows.
        Prefill = "prefill",
        /// In a step that only decodes.
        Decode = "decode",
        /// Finishing, or giving memory back.
        Stopping = "stopping",
        /// Loading failed for good. The worker exits soon after.
        Failed = "failed",
    }
}

worded! {
    /// Phase of a link between target and drafter, as one end reports it.
    LinkPhase {
        /// Nothing was handed over, or the link is gone.
        Absent = "absent",
        /// The descriptors are there; the handshake is not over.
        Greeting = "greeting",
        /// Drafts may arrive over it.
        Up = "up",
        /// The handshake failed: this pair does not go together.
        Refused = "refused",
        /// The peer broke the protocol.
        Ejected = "ejected",
        /// The peer went away.
        Lost = "lost",
        /// Drafts arrive too late again and again; none are requested at the moment.
        Suspect = "suspect",
    }
}

worded! {
    /// State that a gateway reports.
    GatewayState {
        /// Reading tokenizer and template, binding its port.
        Starting = "starting",
        /// Serving.
        Ready = "ready",
        /// Finishing what runs; takes nothing new.
        Draining = "draining",
    }
}
