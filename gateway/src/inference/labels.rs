//! Labels of a request for the processes upstream.

use crate::guard::keys::{DEFAULT_CLASS, IMAGE_CLASS, Principal};

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
