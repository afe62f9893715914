//! Several documents in one sequence: attention and positions do not cross them.

use std::cell::RefCell;

use tch::{Kind, TchError, Tensor};

/// The documents of sequences, for sequences that have several.
#[derive(Debug)]
pub struct Documents {
    positions: Tensor, // [B, T]
    seen: Tensor,      // [B, 1, T, T]
    /// The same within windows: layers share them.
    windows: RefCell<Vec<(i64, Tensor)>>,
}

impl Documents {
    /// Reads where documents start: `starts` is [B, T], true at the first token of each.
    ///
    /// # Errors
    /// libtorch fails: out of memory, mostly.
    pub(crate) fn new(starts: &Tensor) -> Result<Self, TchError> {
        let starts = starts.f_to_kind(Kind::Int64)?;
        let at = Tensor::f_arange(starts.size()[1], (Kind::Int64, starts.device()))?; // [T]
        let (first, _) = starts.f_mul(&at)?.f_cummax(1)?; // [B, T]
        let numbers = starts.f_cumsum(1, Kind::Int64)?; // [B, T]
        let same = numbers.f_unsqueeze(2)?.f_eq_tensor(&numbers.f_unsqueeze(1)?)?; // [B, T, T]
        let (positions, seen) = (at.f_sub(&first)?, same.f_tril(0)?.f_unsqueeze(1)?);
        Ok(Self { positions, seen, windows: RefCell::default() })
    }

    /// Returns each token's position in its document, [B, T].
    pub(super) fn positions(&self) -> &Tensor {
        &self.positions
    }

    /// Returns the tokens that each query sees, [B, 1, T, T]: those before it in its document and itself, within a window.
    pub(super) fn mask(&self, window: Option<i64>) -> Result<Tensor, TchError> {
        let Some(window) = window.filter(|window| *window < self.seen.size()[3]) else {
            return Ok(self.seen.shallow_clone());
        };
        let mut windows = self.windows.borrow_mut();
        if let Some((_, known)) = windows.iter().find(|(other, _)| *other == window) {
            return Ok(known.shallow_clone());
        }
        let seen = self.seen.f_triu(1 - window)?;
        windows.push((window, seen.shallow_clone()));
        Ok(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_start_anew_and_queries_see_their_own_document_within_the_window() {
        let starts =
            Tensor::from_slice2(&[[true, false, false, true, false], [true, true, false, false, false]]);
        let documents = Documents::new(&starts).unwrap();
        let positions: Vec<Vec<i64>> = documents.positions().try_into().unwrap();
        assert_eq!(positions, [[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]]);
        let rows = |mask: Tensor, of: i64| -> Vec<String> {
            let rows: Vec<Vec<bool>> = mask.select(0, of).squeeze_dim(0).try_into().unwrap();
            let sign = |seen: bool| if seen { 'x' } else { '.' };
            rows.into_iter().map(|row| row.into_iter().map(sign).collect()).collect()
        };
        assert_eq!(rows(documents.mask(None).unwrap(), 0), ["x....", "xx...", "xxx..", "...x.", "...xx"]);
        assert_eq!(rows(documents.mask(Some(2)).unwrap(), 1), ["x....", ".x...", ".xx..", "..xx.", "...xx"]);
        assert_eq!(rows(documents.mask(Some(5)).unwrap(), 1)[4], ".xxxx");
    }
}
