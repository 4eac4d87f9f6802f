//! New request ids. The types of ids are in `paceline_vocabulary`.

use paceline_vocabulary::RequestId;

/// Draws a new request id: ordered by time, random in its lower part.
pub fn draw_request_id() -> RequestId {
    RequestId::parse(&uuid::Uuid::now_v7().simple().to_string())
        .expect("a UUID in hexadecimal digits is an id")
}

#[cfg(test)]
mod tests {
    use super::draw_request_id;

    #[test]
    fn two_draws_differ() {
        assert_ne!(draw_request_id(), draw_request_id());
    }
}
