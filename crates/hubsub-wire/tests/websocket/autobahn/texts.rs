//! Section 6: valid and invalid UTF-8 texts, whole and byte by byte.

use super::echo::*;

/// Valid UTF-8, by section: the suite's selection from Markus Kuhn's decoder tests.
fn valid() -> Vec<(&'static str, Vec<u8>)> {
    let chars = |name, codes: &[u32]| {
        let each =
            codes.iter().map(move |&code| (name, char::from_u32(code).unwrap().to_string().into_bytes()));
        each.collect::<Vec<_>>()
    };
    let mut all = vec![("6.2", "Hello-µ@ßöäüàá-UTF-8!!".into()), ("6.5", "κόσμε".into())];
    all.extend(chars("6.7", &[0, 0x80, 0x800, 0x1_0000]));
    all.extend(chars("6.9", &[0x7F, 0x7FF, 0xFFFF, 0x10_FFFF]));
    all.extend(chars("6.11", &[0xD7FF, 0xE000, 0xFFFD, 0x10_FFFF]));
    let planes = (0..=0x10).flat_map(|plane| [plane << 16 | 0xFFFE, plane << 16 | 0xFFFF]);
    all.extend(chars("6.22", &planes.collect::<Vec<_>>()));
    all.extend(chars("6.23", &[0xFFF9, 0xFFFA, 0xFFFB, 0xFFFC, 0xFFFD, 0xFEFF, 0xFEFF]));
    all
}

/// Invalid UTF-8, from the same source.
fn invalid() -> Vec<(&'static str, Vec<u8>)> {
    let mut all: Vec<(&str, Vec<u8>)> = vec![
        ("6.3", b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited".to_vec()),
        ("6.4", b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xf4\x90\x80\x80edited".to_vec()),
        ("6.8", b"\xf8\x88\x80\x80\x80".to_vec()),
        ("6.8", b"\xfc\x84\x80\x80\x80\x80".to_vec()),
        ("6.10", b"\xf7\xbf\xbf\xbf".to_vec()),
        ("6.10", b"\xfb\xbf\xbf\xbf\xbf".to_vec()),
        ("6.10", b"\xfd\xbf\xbf\xbf\xbf\xbf".to_vec()),
        ("6.11", b"\xf4\x90\x80\x80".to_vec()),
        ("6.15", b"\xc0\xe0\x80\xf0\x80\x80\xf8\x80\x80\x80\xfc\x80\x80\x80\x80".to_vec()),
        ("6.16", b"\xfe".to_vec()),
        ("6.16", b"\xff".to_vec()),
        ("6.16", b"\xfe\xfe\xff\xff".to_vec()),
    ];
    // Each start of a valid text that ends inside a character.
    let whole = "κόσμε".as_bytes();
    let cut = (1..whole.len()).filter(|&at| std::str::from_utf8(&whole[..at]).is_err());
    all.extend(cut.map(|at| ("6.6", whole[..at].to_vec())));
    all.extend((1..=7).map(|count| ("6.12", [0x80, 0xBF].repeat(4)[..count].to_vec())));
    all.push(("6.12", (0x80..=0xBF).collect()));
    for (range, group) in [
        (0xC0..=0xDFu8, "6.13"),
        (0xE0..=0xEF, "6.13"),
        (0xF0..=0xF7, "6.13"),
        (0xF8..=0xFB, "6.13"),
        (0xFC..=0xFD, "6.13"),
    ] {
        all.push((group, range.flat_map(|byte| [byte, b' ']).collect()));
    }
    for lacks_last in [
        &b"\xc0"[..],
        b"\xe0\x80",
        b"\xf0\x80\x80",
        b"\xf8\x80\x80\x80",
        b"\xfc\x80\x80\x80\x80",
        b"\xdf",
        b"\xef\xbf",
        b"\xf7\xbf\xbf",
        b"\xfb\xbf\xbf\xbf",
        b"\xfd\xbf\xbf\xbf\xbf",
    ] {
        all.push(("6.14", lacks_last.to_vec()));
    }
    // Overlong encodings: `/`, the last ones of each length, and NUL.
    for (group, forms) in [
        (
            "6.17",
            [
                &b"\xc0\xaf"[..],
                b"\xe0\x80\xaf",
                b"\xf0\x80\x80\xaf",
                b"\xf8\x80\x80\x80\xaf",
                b"\xfc\x80\x80\x80\x80\xaf",
            ],
        ),
        (
            "6.18",
            [
                &b"\xc1\xbf"[..],
                b"\xe0\x9f\xbf",
                b"\xf0\x8f\xbf\xbf",
                b"\xf8\x87\xbf\xbf\xbf",
                b"\xfc\x83\xbf\xbf\xbf\xbf",
            ],
        ),
        (
            "6.19",
            [
                &b"\xc0\x80"[..],
                b"\xe0\x80\x80",
                b"\xf0\x80\x80\x80",
                b"\xf8\x80\x80\x80\x80",
                b"\xfc\x80\x80\x80\x80\x80",
            ],
        ),
    ] {
        all.extend(forms.map(|form| (group, form.to_vec())));
    }
    let halves: [&[u8]; 7] = [
        b"\xed\xa0\x80",
        b"\xed\xad\xbf",
        b"\xed\xae\x80",
        b"\xed\xaf\xbf",
        b"\xed\xb0\x80",
        b"\xed\xbe\x80",
        b"\xed\xbf\xbf",
    ];
    all.extend(halves.map(|half| ("6.20", half.to_vec())));
    for (high, low) in [(0, 4), (0, 6), (1, 4), (1, 6), (2, 4), (2, 6), (3, 4), (3, 6)] {
        all.push(("6.21", [halves[high], halves[low]].concat()));
    }
    all
}

#[test]
fn section_6_texts_that_are_utf_8_and_that_are_not() {
    case("6.1.1", &[text("")], &[echoed("")]);
    case("6.1.2", &[frame(1, b""), frame(0, b""), frame(FIN, b"")], &[echoed("")]);
    case("6.1.3", &[frame(1, b""), frame(0, b"middle"), frame(FIN, b"")], &[echoed("middle")]);
    let bytes_as_frames = |payload: &[u8]| -> Vec<Vec<u8>> {
        let last = payload.len().saturating_sub(1);
        let first = |at: usize| u8::from(at == 0) | if at == last { FIN } else { 0 };
        payload.iter().enumerate().map(|(at, byte)| frame(first(at), &[*byte])).collect()
    };
    for (name, payload) in valid() {
        let expected = [Got::Text(payload.clone())];
        case(name, &[frame(TEXT, &payload)], &expected);
        case(name, &bytes_as_frames(&payload), &expected);
    }
    for (name, payload) in invalid() {
        assert!(std::str::from_utf8(&payload).is_err(), "{name}");
        case(name, &[frame(TEXT, &payload)], &[NOT_UTF8]);
        case(name, &bytes_as_frames(&payload), &[NOT_UTF8]);
    }
}

#[test]
fn section_6_4_a_wrong_byte_is_refused_before_the_message_ends() {
    let (good, bad) = ("κόσμε".as_bytes(), b"\xf4\x90\x80\x80");
    let mut echo = Echo::new();
    echo.receive(&frame(1, good));
    assert!(!echo.is_closed);
    echo.receive(&frame(0, bad));
    assert_eq!(got(&mut echo.out), [NOT_UTF8], "6.4.1, 6.4.2: by the frame");
    let mut echo = Echo::new();
    let sent = frame(TEXT, &[good, bad, b"edited"].concat());
    // The header's six bytes, the valid part, and the byte that makes it invalid.
    let wrong_at = 6 + good.len() + 2;
    echo.receive(&sent[..wrong_at - 1]);
    assert!(!echo.is_closed);
    echo.receive(&sent[wrong_at - 1..wrong_at]);
    assert_eq!(got(&mut echo.out), [NOT_UTF8], "6.4.3, 6.4.4: by the byte");
}
