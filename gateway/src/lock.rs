//! Locks of data that many threads use.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks data whose changes that belong together have no panic between them. After a panic of
/// another holder it is whole, and is used on.
pub fn lock<T>(data: &Mutex<T>) -> MutexGuard<'_, T> {
    data.lock().unwrap_or_else(PoisonError::into_inner)
}
