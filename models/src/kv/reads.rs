//! Attention to rows that are written: by nodes of our own, or by MLX.

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::by_row::RowReads;
use super::step_rows::{Causality, QueryKind, Reach};
use super::{AttentionParams, GrowingKv, KvStore, by_class};
use crate::error::{ModelError, Result};
use crate::layers::{HeadRows, QueryRows, attend_rows};

impl KvStore {
    /// Attends to what is written.
    pub(super) fn read(
        &mut self,
        layer: usize,
        q: &HeadRows<'_>,
        params: AttentionParams<'_>,
    ) -> Result<Array> {
        let layer = self.growing(layer)?;
        let GrowingKv { window, .. } = self.layers.growing[layer];
        let reach = match params.both_ways {
            true => Reach::End,
            false => Reach::in_image(window, params.images),
        };
        let causality = Causality { window, reach };
        let mut outputs = match self.goes_by_row(&[q.rows]) {
            true => self.attend_by_row(layer, q, params.scale, causality)?,
            false => self.attend_by_class(layer, &q.array()?, params.scale, causality)?,
        };
        match outputs.len() {
            0 => Err(ModelError::Batch("expected a row that is a query, found none".into())),
            1 => Ok(outputs.swap_remove(0)),
            _ => Ok(concatenate(&outputs, 0)?),
        }
    }

    /// One node of our own for neighbouring rows of a class.
    fn attend_by_row(
        &mut self,
        layer: usize,
        q: &HeadRows<'_>,
        scale: f32,
        causality: Causality,
    ) -> Result<Vec<Array>> {
        let access = self.access.as_mut().expect("made by write");
        let reads = access.row_reads(causality);
        let attend = |read: &RowReads| {
            let queries = QueryRows { heads: q.clone(), first: read.rows.start };
            attend_rows(&queries, &self.classes[read.class].stored(layer), &read.keys, scale)
        };
        reads.iter().map(attend).collect()
    }

    /// By MLX: see [`by_class`].
    fn attend_by_class(
        &mut self,
        layer: usize,
        q: &Array,
        scale: f32,
        causality: Causality,
    ) -> Result<Vec<Array>> {
        let access = self.access.as_mut().expect("made by write");
        let mut outputs = Vec::with_capacity(access.reads.len());
        for read in &mut access.reads {
            let class = &self.classes[read.class];
            let kept = class.places(layer);
            let kind = QueryKind { causality, kept, heads: q.dim(1), dtype: q.dtype() };
            let calls = read.calls(kind, self.calls)?;
            outputs.push(by_class::attend(class, layer, q, &calls, scale)?);
        }
        Ok(outputs)
    }
}
