//! States of recurrent layers in the page store.

use paceline_models::{KvStore, ModelError, SequenceId};
use paceline_target_core::{
    Evicted, HiddenStateWindow, KeptPages, PAGE, SNAPSHOT_INTERVAL, SequenceKey,
};

use super::{BORDER_BYTES, PageStore, StoredPage, drop_evicted, store_hidden_states};

/// Most pages that are copied with states at one step border: those of two intervals, in case the
/// states of the first found no room. More are missing if memory is so short that the beginning of a
/// running sequence was evicted. Copying all of it again would stop the other streams.
const MOST_NEW_PAGES: usize = 2 * SNAPSHOT_INTERVAL / PAGE;

impl PageStore {
    /// Stores the states after `ids`, which are committed rows of a sequence and whole pages, and
    /// the pages that are not stored yet. Pages that `window` covers get their hidden states. Stores
    /// nothing if all of it has no room within `limit` bytes, or if more than [`MOST_NEW_PAGES`] are
    /// not stored.
    ///
    /// # Errors
    /// As [`KvStore::copy_out`] and [`KvStore::keep_states`].
    pub(crate) fn keep_states(
        &mut self,
        kv: &KvStore,
        key: SequenceKey,
        ids: &[u32],
        window: Option<&HiddenStateWindow>,
        limit: u64,
    ) -> Result<(), ModelError> {
        let Self { index, open, stored, page_bytes, .. } = self;
        let Some(open) = open.get_mut(&key) else { return Ok(()) };
        let (keys, sequence) = (open.chain.of(ids), SequenceId(key.0));
        let mut evicted = Evicted::default();
        let kept = index.extend_with_states(keys, MOST_NEW_PAGES, *page_bytes, limit, &mut evicted);
        // What was evicted is freed before the new copies are made.
        drop_evicted(stored, &evicted);
        open.full = kept.is_none();
        let Some(KeptPages { known, added, states }) = kept else { return Ok(()) };
        // A copy takes twice its bytes for the moment. Pages are empty if all layers have windows.
        let most = BORDER_BYTES.checked_div(*page_bytes).unwrap_or(BORDER_BYTES).max(1) as usize;
        for (at, pages) in added.chunks(most).enumerate() {
            let first = (known + at * most) * PAGE;
            let rows = kv.copy_out(sequence, first as i32, PAGE as i32, pages.len() as i32)?;
            stored.extend(pages.iter().copied().zip(rows.into_iter().map(StoredPage::new)));
        }
        if let Some(page) = states.and_then(|page| stored.get_mut(&page)) {
            page.states = Some(kv.keep_states(sequence, ids.len() as i32)?);
        }
        if let Some(window) = window {
            store_hidden_states(index, stored, keys, window, limit);
        }
        Ok(())
    }
}
