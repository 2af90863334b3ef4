//! Incremental UTF-8 check of a text, which fails at the first wrong byte.

/// The incomplete character at the end of the text so far, if any.
#[derive(Clone, Copy, Default, Debug)]
pub struct Utf8 {
    begun: [u8; 4],
    len: u8,
}

impl Utf8 {
    /// Checks the next piece; false if the text is invalid, whatever follows.
    #[inline]
    pub fn read(&mut self, piece: &[u8]) -> bool {
        let mut piece = piece;
        while self.len > 0 {
            let Some((&byte, rest)) = piece.split_first() else { return true };
            self.begun[usize::from(self.len)] = byte;
            self.len += 1;
            piece = rest;
            match std::str::from_utf8(&self.begun[..usize::from(self.len)]) {
                Ok(_) => self.len = 0,
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        match std::str::from_utf8(piece) {
            Ok(_) => true,
            Err(error) if error.error_len().is_some() => false,
            Err(error) => {
                let begun = &piece[error.valid_up_to()..];
                self.begun[..begun.len()].copy_from_slice(begun);
                self.len = begun.len() as u8;
                true
            }
        }
    }

    /// Whether the text may end here.
    pub fn is_whole(self) -> bool {
        self.len == 0
    }
}
