//! Appendix C of RFC 7541, and the encoder against the decoder.

use super::*;

type Line = (String, String, bool);

const UNLIMITED: ListLimits = ListLimits { bytes: usize::MAX, lines: usize::MAX };

#[test]
fn appendix_c_2_field_representations() {
    let mut decoder = Decoder::new();
    check(
        &mut decoder,
        "400a637573746f6d2d6b65790d637573746f6d2d686561646572",
        &["custom-key: custom-header"],
        (1, 55),
    );
    check(&mut Decoder::new(), "040c2f73616d706c652f70617468", &[":path: /sample/path"], (0, 0));
    check(&mut Decoder::new(), "100870617373776f726406736563726574", &["password: secret"], (0, 0));
    check(&mut Decoder::new(), "82", &[":method: GET"], (0, 0));
    assert!(decode(&mut Decoder::new(), "100870617373776f726406736563726574")[0].2);
}

#[test]
fn appendix_c_3_and_4_requests() {
    let first =
        [":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com"].as_slice();
    let second = [first, &["cache-control: no-cache"]].concat();
    let third = [
        ":method: GET",
        ":scheme: https",
        ":path: /index.html",
        ":authority: www.example.com",
        "custom-key: custom-value",
    ];
    for blocks in [
        [
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ],
        [
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ],
    ] {
        let mut decoder = Decoder::new();
        check(&mut decoder, blocks[0], first, (1, 57));
        check(&mut decoder, blocks[1], &second, (2, 110));
        check(&mut decoder, blocks[2], &third, (3, 164));
    }
}

#[test]
fn appendix_c_5_and_6_responses_with_eviction() {
    let first = [
        ":status: 302",
        "cache-control: private",
        "date: Mon, 21 Oct 2013 20:13:21 GMT",
        "location: https://www.example.com",
    ];
    let second = [":status: 307", first[1], first[2], first[3]];
    let third = [
        ":status: 200",
        first[1],
        "date: Mon, 21 Oct 2013 20:13:22 GMT",
        first[3],
        "content-encoding: gzip",
        "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
    ];
    for blocks in [
        [
            "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a3231204\
             74d546e1768747470733a2f2f7777772e6578616d706c652e636f6d",
            "4803333037c1c0bf",
            "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666\
             f6f3d4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303\
             b2076657273696f6e3d31",
        ],
        [
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad1718\
             63c78f0b97c8e9ae82ae43d3",
            "4883640effc1c0bf",
            "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b3\
             35dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
        ],
    ] {
        let mut decoder = Decoder::new();
        decoder.set_allowed_size(256);
        decode(&mut decoder, "3fe101"); // the examples start with a table of 256 bytes
        check(&mut decoder, blocks[0], &first, (4, 222));
        check(&mut decoder, blocks[1], &second, (4, 222));
        check(&mut decoder, blocks[2], &third, (3, 215));
    }
}

#[test]
fn strings_of_appendix_c_are_coded_as_there() {
    for (plain, coded) in [
        ("www.example.com", "f1e3c2e5f23a6ba0ab90f4ff"),
        ("no-cache", "a8eb10649cbf"),
        ("custom-value", "25a849e95bb8e8b4bf"),
        ("Mon, 21 Oct 2013 20:13:21 GMT", "d07abe941054d444a8200595040b8166e082a62d1bff"),
    ] {
        let mut out = Vec::new();
        huffman::encode(plain.as_bytes(), &mut out);
        assert_eq!(out, hex(coded));
    }
}

#[test]
fn lists_over_a_limit_are_cut_and_the_table_stays_in_step() {
    let mut encoder = Encoder::new(4096);
    let mut decoder = Decoder::new();
    for _ in 0..3 {
        let mut block = Vec::new();
        encoder.begin(&mut block);
        for _ in 0..1000 {
            encoder.field(b"x-bomb", &[b'b'; 1000], false, &mut block);
        }
        assert!(block.len() < 3100, "but for two the lines are references: {}", block.len());
        let mut handed_on = 0;
        let limits = ListLimits { bytes: 10_000, lines: 128 };
        let decoded = decoder.decode(&block, limits, |_| handed_on += 1).unwrap();
        assert_eq!((decoded.is_over_limit, decoded.lines, handed_on), (true, 1000, 9));
    }
}

#[test]
fn size_update_rules_are_enforced() {
    let refused = |decoder: &mut Decoder, block: &str| {
        decoder.decode(&hex(block), UNLIMITED, |_| ()).unwrap_err()
    };
    let mut decoder = Decoder::new();
    assert_eq!(refused(&mut decoder, "3fe21f"), DecodeError::SizeUpdateTooLarge); // 4,097
    assert_eq!(refused(&mut decoder, "8220"), DecodeError::SizeUpdateMisplaced);
    decoder.set_allowed_size(100);
    assert_eq!(refused(&mut decoder, "82"), DecodeError::SizeUpdateMissing);
    assert_eq!(decode(&mut decoder, "203f4582").len(), 1); // to 0, then to 100
    assert_eq!(decode(&mut decoder, "82").len(), 1);
}

#[test]
fn malformed_blocks_are_refused() {
    for (block, error) in [
        ("80", DecodeError::UnknownIndex),
        ("be", DecodeError::UnknownIndex),
        ("7f0000", DecodeError::UnknownIndex),
        ("ffffffffffff", DecodeError::IntegerTooLarge),
        ("40", DecodeError::Truncated),
        ("400361", DecodeError::Truncated),
        ("4081ff0161", DecodeError::Huffman),
    ] {
        let outcome = Decoder::new().decode(&hex(block), UNLIMITED, |_| ());
        assert_eq!(outcome.unwrap_err(), error, "{block}");
    }
}

#[test]
fn a_line_is_indexed_the_second_time_and_referenced_the_third() {
    let mut encoder = Encoder::new(4096);
    let mut sizes = Vec::new();
    for _ in 0..3 {
        let mut block = Vec::new();
        encoder.field(b"x-tenant", b"some-tenant-of-ours", false, &mut block);
        sizes.push((block.len(), encoder.table().len()));
    }
    assert_eq!(sizes[2], (1, 1));
    assert_eq!((sizes[0].1, sizes[1].1), (0, 1));
}

#[test]
fn the_lines_of_a_head_that_repeats_are_all_indexed() {
    for service in 0..100 {
        let lines: Vec<_> = (0..16)
            .map(|line| (format!("x-field-{line}"), format!("service-{service}.default.west")))
            .collect();
        let mut encoder = Encoder::new(DEFAULT_TABLE_BYTES);
        let mut block = Vec::new();
        for _ in 0..3 {
            block.clear();
            encoder.begin(&mut block);
            for (name, value) in &lines {
                encoder.field(name.as_bytes(), value.as_bytes(), false, &mut block);
            }
        }
        assert_eq!(block.len(), lines.len(), "service {service}: an octet each");
    }
}

#[test]
fn credentials_and_short_cookies_never_enter_the_table() {
    let mut encoder = Encoder::new(4096);
    for (name, value, sensitive) in [
        ("authorization", "Bearer abcdefghijklmnopqrstuvwxyz", false),
        ("proxy-authorization", "Basic abcdefghijklmnopqrstuvwxyz", false),
        ("set-cookie", "session=abcdefghijklmnopqrstuvwxyz", false),
        ("cookie", "a=b", false),
        ("x-api-key", "abcdefghijklmnopqrstuvwxyz", true),
    ] {
        for _ in 0..3 {
            let mut block = Vec::new();
            encoder.field(name.as_bytes(), value.as_bytes(), sensitive, &mut block);
            assert_eq!(block[0] & 0xf0, 0x10, "{name} is marked never indexed");
        }
    }
    assert_eq!(encoder.table().len(), 0);
}

#[test]
fn shrinking_and_growing_the_table_announces_both_sizes() {
    let mut encoder = Encoder::new(4096);
    let mut decoder = Decoder::new();
    for _ in 0..2 {
        let mut block = Vec::new();
        encoder.field(b"x-name", b"x-value", false, &mut block);
        decoder.decode(&block, UNLIMITED, |_| ()).unwrap();
    }
    encoder.set_peer_limit(0);
    encoder.set_peer_limit(65_536);
    let mut block = Vec::new();
    encoder.begin(&mut block);
    assert_eq!(block, hex("203fe11f"));
    decoder.decode(&block, UNLIMITED, |_| ()).unwrap();
    assert_eq!((encoder.table().len(), decoder.table().len()), (0, 0));
    let mut block = Vec::new();
    encoder.begin(&mut block);
    assert!(block.is_empty());
}

#[test]
fn every_line_of_the_table_is_found_however_many_came_and_went() {
    let mut encoder = Encoder::new(1024);
    for nth in 0..5000_u32 {
        let value = format!("value {}", nth.wrapping_mul(2_654_435_761) % 1000);
        for _ in 0..2 {
            encoder.field(b"x-n", value.as_bytes(), false, &mut Vec::new());
        }
        let table = encoder.table();
        let lines: Vec<Vec<u8>> =
            (0..table.len()).map(|at| table.get(at).unwrap().1.to_vec()).collect();
        assert!(lines.len() <= 1024 / 32);
        for (at, value) in lines.iter().enumerate() {
            let mut block = Vec::new();
            encoder.field(b"x-n", value, false, &mut block);
            let index = static_table::LEN + 1 + at;
            assert_eq!(block, [0x80 | u8::try_from(index).unwrap()], "line {at} after {nth}");
        }
    }
}

fn check(decoder: &mut Decoder, block: &str, expected: &[&str], table: (usize, usize)) {
    let lines: Vec<_> =
        decode(decoder, block).iter().map(|l| format!("{}: {}", l.0, l.1)).collect();
    assert_eq!(lines, expected);
    assert_eq!((decoder.table().len(), decoder.table().size()), table);
}

fn decode(decoder: &mut Decoder, block: &str) -> Vec<Line> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut lines = Vec::new();
    decoder
        .decode(&hex(block), UNLIMITED, |field| {
            lines.push((text(field.name), text(field.value), field.sensitive));
        })
        .unwrap();
    lines
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
