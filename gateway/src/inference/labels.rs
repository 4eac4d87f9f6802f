//! Labels of a request for the processes upstream.

use crate::guard::keys::{DEFAULT_CLASS, IMAGE_CLASS, Principal};

/// Id of a sequence upstream: the request's id, the sample if there are several, and how often it
/// was submitted before. Two sequences never have one id, because a process that was left by its
/// supervisor may still have the earlier one.
pub(super) fn resumed_id(request_id: &str, sample: Option<usize>, resumed: u32) -> String {
    let sample = sample.map(|at| format!("-{at}")).unwrap_or_default();
    let resumed = if resumed == 0 { String::new() } else { format!("-r{resumed}") };
    format!("{request_id}{sample}{resumed}")
}

/// Labels of a request for the processes upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLabels {
    /// Id of the request.
    pub request_id: String,
    /// Absolute, by the monotonic clock.
    pub deadline_ns: i64,
    /// The class that speculation is measured by.
    pub traffic_class: String,
    /// Prefixes are shared among requests of one scope; empty without a key.
    pub cache_scope: String,
}

impl RequestLabels {
    /// The labels of a request of this key's owner.
    pub fn new(request_id: &str, deadline_ns: i64, principal: Option<&Principal>) -> Self {
        let class = principal.map_or(DEFAULT_CLASS, |principal| &*principal.class);
        let scope = principal.map_or("", |principal| &*principal.scope);
        Self {
            request_id: request_id.to_owned(),
            deadline_ns,
            traffic_class: class.to_owned(),
            cache_scope: scope.to_owned(),
        }
    }

    /// The labels of the same request with images: it has a class of its own, unless its key has
    /// one.
    pub fn with_images(mut self) -> Self {
        if self.traffic_class == DEFAULT_CLASS {
            self.traffic_class = IMAGE_CLASS.to_owned();
        }
        self
    }
}
