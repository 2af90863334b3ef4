//! Masking (section 5.3): payload byte `i` xor mask byte `i mod 4`, both ways.

/// Masks or unmasks bytes where they are, eight at a time; gives the mask as it
/// goes on behind them.
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
