//! Images through the whole service: every way in, beside text, and under faults. An image
//! changes the answer or the request fails and says why; what runs beside it never notices (I1, I2,
//! I3, I6).

mod beside;
mod demo;
mod faults;
mod golden;
mod http;
mod hybrid;
mod kinds;
mod matrix;
mod text_alone;
mod ways;

use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::count_tokens_request::Request as Kind;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{CountTokensRequest, CountTokensResponse};
use paceline_tests::ask::Ask;
use paceline_tests::prompts::same_but_near_ties;
use paceline_tests::{Answer, Stack, images, wait};
use tonic::{Code, Status};

/// Held against an answer of the plain lane. On a model of random weights choices are close now and
/// then; more than a few that part at one are none.
#[derive(Debug, Default)]
struct Compared {
    near_ties: u32,
}

impl Compared {
    fn same(&mut self, reference: &Answer, other: &Answer, what: &str) {
        assert_eq!(reference.usage().prompt_tokens, other.usage().prompt_tokens, "{what}");
        same_but_near_ties(reference, other, what, &mut self.near_ties);
        assert!(self.near_ties <= 1, "{what}: {} near-ties", self.near_ties);
    }
}

/// Whether it was refused with this reason, in words that have these.
fn refused(status: &Status, code: Code, reason: Reason, words: &[&str], what: &str) {
    assert_eq!((status.code(), Reason::of(status)), (code, Some(reason)), "{what}: {status:?}");
    for word in words {
        assert!(
            status.message().contains(word),
            "{what}: {word:?} is not in {:?}",
            status.message()
        );
    }
}

/// The prompt a conversation would have.
fn count(stack: &Stack, ask: &Ask) -> Result<CountTokensResponse, Status> {
    let Ask::Chat(request) = ask.clone() else { panic!("a conversation") };
    let request = CountTokensRequest { request: Some(Kind::Chat(request)), report_ids: true };
    stack
        .block_on(InferenceClient::new(stack.channel()).count_tokens(request))
        .map(tonic::Response::into_inner)
}

/// Waits until nothing is held for any request, and nothing waits in a file.
fn all_is_over(stack: &Stack) {
    stack.wait_memory_back();
    wait("no image's file to be left", || images::waiting(stack).is_empty().then_some(()));
}
