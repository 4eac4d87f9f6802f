//! [`Denial`] and [`OrderRefusal`] → `Status`, through the one table of `proto::status`.

use std::time::Duration;

use paceline_proto::status::{COMPLETION_TOKENS, Reason, ReasonStatus as _, Refusal};
use tonic::Status;

use paceline_supervisor_core::denial::{Denial, OrderRefusal};

/// The status of a denied request. Longer than 60 lines: a table with one row for each denial.
pub fn denied(denial: Denial) -> Status {
    let reason = denial.reason();
    let refusal = match denial {
        Denial::Outage { outage, retry_ms, log } => {
            let log =
                if log.is_empty() { String::new() } else { format!("; last log lines:\n{log}") };
            // A client without an operator tries again after that time; the sentence promises none.
            if reason == Reason::Draining {
                let pause = Duration::from_millis(retry_ms);
                return Refusal::new(reason, outage.why).retry_after(pause).into();
            }
            later(reason, &outage.why, retry_ms, &log)
        }
        Denial::Gone { cause, retry_ms } => later(
            reason,
            &format!("the target ended while the request ran ({cause}) and is being started again"),
            retry_ms,
            "",
        ),
        Denial::QueueFull { limit } => {
            let message = format!(
                "{limit} requests are waiting already, as many as may (limits.queue); try again in 1 s"
            );
            Refusal::new(reason, message).field("limits.queue").fact("limit", limit)
        }
        Denial::QueueWait { waited_ms } => {
            let message = format!(
                "no room within {:.1} s of waiting (limits.queue_wait_s); try again in 1 s",
                seconds(waited_ms)
            );
            Refusal::new(reason, message).field("limits.queue_wait_s").fact("waited_ms", waited_ms)
        }
        Denial::KvExhausted { positions, need_bytes, budget_bytes } => {
            let message = format!(
                "the request may come to hold {need_bytes} bytes of KV for {positions} positions, the whole budget is \
                     {budget_bytes} bytes; ask for fewer tokens, or raise kv.budget_bytes"
            );
            let refusal = Refusal::new(reason, message).field("kv.budget_bytes");
            refusal.fact("need_bytes", need_bytes).fact("budget_bytes", budget_bytes)
        }
        Denial::TooLong { prompt_tokens, max_tokens, context } => {
            let alone = prompt_tokens >= context;
            let message = format!(
                "a prompt of {prompt_tokens} tokens and {max_tokens} more do not fit the context of {context} tokens; \
                     send a shorter prompt{}",
                if alone { "" } else { ", or ask for fewer tokens" }
            );
            let refusal = Refusal::new(reason, message).field(if alone {
                "prompt"
            } else {
                "limits.max_tokens"
            });
            refusal
                .fact("prompt_tokens", prompt_tokens)
                .fact("max_tokens", max_tokens)
                .fact("context", context)
        }
        Denial::DeadlineInfeasible { earliest_ms, remaining_ms } => {
            let message = format!(
                "the first token is expected after {:.1} s at the earliest, and the deadline is in {:.1} s; allow more time \
                     (grpc-timeout), or send a shorter prompt",
                seconds(earliest_ms),
                seconds(remaining_ms)
            );
            let refusal = Refusal::new(reason, message).fact("earliest_ms", earliest_ms);
            refusal.fact("patience_ms", remaining_ms).fact(COMPLETION_TOKENS, 0)
        }
        Denial::PoisonSuspect => {
            let message = "the target ended twice while it worked on this request, so the request is \
                           refused for 10 minutes; change the prompt, its images or its schema";
            Refusal::new(reason, message)
        }
        Denial::ModelChanged => {
            let message = "another model is served now, and the request was made for the earlier one; \
                           send it again";
            Refusal::new(reason, message)
        }
        Denial::DeadlinePassed { waited_ms } => {
            let message =
                format!("the deadline passed in the queue, after {:.1} s", seconds(waited_ms));
            Refusal::new(reason, message).fact("waited_ms", waited_ms).fact(COMPLETION_TOKENS, 0)
        }
    };
    refusal.into()
}

/// The status of an operator's order that was refused, or ended without success.
pub fn refused(refusal: OrderRefusal) -> Status {
    refusal.reason.status(refusal.message)
}

fn later(reason: Reason, why: &str, retry_ms: u64, more: &str) -> Refusal {
    Refusal::new(reason, format!("{why}; try again in {:.1} s{more}", seconds(retry_ms)))
        .retry_after(Duration::from_millis(retry_ms))
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_supervisor_core::denial::Outage;
    use tonic::Code;
    use tonic_types::StatusExt;

    #[test]
    fn every_denial_has_its_code_and_its_facts() {
        let outage = |reason| Denial::Outage {
            outage: Outage { reason, why: "why".into() },
            retry_ms: 2_500,
            log: "line".into(),
        };
        let cases = [
            (
                outage(Reason::TargetLoading),
                Code::Unavailable,
                "why; try again in 2.5 s; last log lines:\nline",
            ),
            (outage(Reason::Draining), Code::Unavailable, "why"),
            (
                Denial::Gone { cause: "signal 9 (SIGKILL)".into(), retry_ms: 700 },
                Code::Unavailable,
                "(signal 9 (SIGKILL))",
            ),
            (Denial::QueueFull { limit: 64 }, Code::ResourceExhausted, "64 requests"),
            (Denial::QueueWait { waited_ms: 10_000 }, Code::ResourceExhausted, "within 10.0 s"),
            (
                Denial::KvExhausted { positions: 5, need_bytes: 70, budget_bytes: 60 },
                Code::ResourceExhausted,
                "70 bytes",
            ),
            (
                Denial::TooLong { prompt_tokens: 9, max_tokens: 2, context: 10 },
                Code::InvalidArgument,
                "of 9 tokens and 2 more",
            ),
            (
                Denial::DeadlineInfeasible { earliest_ms: 3_100, remaining_ms: 300 },
                Code::DeadlineExceeded,
                "3.1 s at the earliest",
            ),
            (Denial::DeadlinePassed { waited_ms: 1_500 }, Code::DeadlineExceeded, "after 1.5 s"),
        ];
        for (denial, code, part) in cases {
            let reason = denial.reason();
            let status = denied(denial);
            assert_eq!((status.code(), Reason::of(&status)), (code, Some(reason)));
            assert!(status.message().contains(part), "{}", status.message());
            assert_eq!(status.get_details_retry_info().is_some(), reason.retryable(), "{reason:?}");
        }
        let status = denied(outage(Reason::Restarting));
        let retry = status.get_details_retry_info().and_then(|info| info.retry_delay);
        assert_eq!(retry, Some(Duration::from_millis(2_500)));
    }

    #[test]
    fn a_request_that_does_not_fit_is_told_which_field_is_at_fault() {
        let field = |prompt_tokens| {
            let status = denied(Denial::TooLong { prompt_tokens, max_tokens: 8, context: 100 });
            status.get_details_bad_request().expect("an invalid argument").field_violations[0]
                .field
                .clone()
        };
        assert_eq!(field(100), "prompt");
        assert_eq!(field(99), "limits.max_tokens");
    }
}
