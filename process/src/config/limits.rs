//! `[limits]`: what a request and a client may ask for.

use serde::{Deserialize, Serialize};

use super::Auto;

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Most tokens of a request, prompt and answer together; auto = the model's context, which is
    /// also the most that it can be.
    pub context_tokens: Auto<u32>,
    /// Longest prompt in tokens; auto = the context.
    pub max_prompt_tokens: Auto<u32>,
    /// Most tokens a request may generate; auto = the context.
    pub max_new_tokens: Auto<u32>,
    /// Requests that may wait, of all API keys together. Default: 128, so that a burst of 100 is
    /// served whole.
    pub queue: u32,
    /// Seconds a request may wait.
    pub queue_wait_s: u64,
    /// Seconds a request may take in all.
    pub deadline_s: u64,
    /// Largest message of a client in bytes, including its images.
    pub max_message_bytes: u64,
    /// Bytes of bodies that are received and of whole answers that are made, of all clients
    /// together. Default: 256 MiB, which is sixteen of the largest messages. One client alone may
    /// have a quarter for its long bodies.
    pub body_bytes: u64,
    /// Connections of clients at once. If all are taken, a new connection closes the longest idle
    /// one.
    pub connections: u32,
    /// Connections at once of one peer (an IPv4 address, an IPv6 /64), other than this machine;
    /// auto = a quarter of `connections`.
    pub connections_per_peer: Auto<u32>,
    /// Requests at once on one connection; further ones wait at the client.
    pub streams_per_connection: u32,
    /// Requests that run at once under one API key's name; its further requests wait in the queue.
    /// Default: 16, half of what runs at once.
    pub streams_per_key: u32,
    /// Seconds that a client may take to send its message, from the headers on.
    pub message_s: u64,
    /// Seconds that a client may leave its answer unread before its request is ended.
    pub unread_s: u64,
    /// Images in one request.
    pub max_images: u32,
    /// Pixels of one image as it is sent.
    pub max_image_pixels: u64,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            context_tokens: Auto::Auto,
            max_prompt_tokens: Auto::Auto,
            max_new_tokens: Auto::Auto,
            queue: 128,
            queue_wait_s: 10,
            deadline_s: 600,
            max_message_bytes: 16 << 20,
            body_bytes: 256 << 20,
            // Each is a descriptor, and systems give 1024 or fewer by default.
            connections: 512,
            connections_per_peer: Auto::Auto,
            streams_per_connection: 128,
            streams_per_key: 16,
            // The largest message at two megabits a second.
            message_s: 60,
            unread_s: 60,
            max_images: 8,
            max_image_pixels: 40_000_000,
        }
    }
}
