//! Masking (section 5.3): payload byte `i` xor mask byte `i mod 4`, in both directions.

/// Masks or unmasks bytes in place, eight at a time; returns the mask for the bytes after them.
#[inline]
pub fn unmask(bytes: &mut [u8], mask: [u8; 4]) -> [u8; 4] {
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
    let mut mask = mask;
    mask.rotate_left(rest.len() % 4);
    mask
}
