use super::*;

fn with_header(header: &str, expected: impl FnOnce(Result<Command<'_>, HeaderError>)) {
    let mut scratch = Scratch::default();
    let frame = Frame {
        encoding: Encoding::Json,
        header: header.as_bytes(),
        body: b"",
        bytes: 0,
    };
    expected(Command::decode(&frame, &mut scratch));
}

/// Checks the fields of `{"extFields":<fields>}`.
fn check_fields(fields: &str, expected: &[(&str, &str)]) {
    with_header(&format!("{{\"extFields\":{fields}}}"), |command| {
        let command = command.unwrap_or_else(|error| panic!("{fields}: {error}"));
        assert_eq!(
            command.fields.iter().collect::<Vec<_>>(),
            expected,
            "{fields}"
        );
    });
}

fn check_error(header: &str, at: u32) {
    with_header(header, |command| {
        assert_eq!(command.err(), Some(HeaderError::Json { at }), "{header}");
    });
}

#[test]
fn missing_keys_have_defaults() {
    for header in [
        "{}",
        " {\n} \n",
        r#"{"flag":null,"remark":null,"extFields":null,"language":null}"#,
    ] {
        with_header(header, |command| {
            let command = command.expect("a header");
            assert_eq!(
                (command.code, command.version, command.opaque, command.flag),
                (0, 0, 0, 0)
            );
            assert_eq!((command.language, command.remark), ("OTHER", None));
            assert_eq!(command.fields.iter().count(), 0);
        });
    }
}

/// Trap 0 of `conventions.md`: Go, C++ and Node leave `serializeTypeCurrentRPC` out, some send an empty remark.
#[test]
fn header_of_a_go_client_is_read() {
    let header = r#"{"code":105,"language":"GO","version":317,"opaque":2,"flag":0,"remark":"","extFields":{"topic":"T"}}"#;
    with_header(header, |command| {
        let command = command.expect("a header");
        assert_eq!(
            (command.code, command.language, command.version),
            (105, "GO", 317)
        );
        assert_eq!((command.opaque, command.remark), (2, Some("")));
        assert_eq!(command.fields.get("topic"), Some("T"));
    });
}

/// Trap 2: `ali-ons` sends JSON numbers and booleans as field values.
#[test]
fn scalars_in_ext_fields_are_coerced_to_text() {
    check_fields(
        r#"{"d":4,"k":false,"t":true,"g":1796098557281,"n":-1,"f":1.5e3}"#,
        &[
            ("d", "4"),
            ("k", "false"),
            ("t", "true"),
            ("g", "1796098557281"),
            ("n", "-1"),
            ("f", "1.5e3"),
        ],
    );
}

/// Trap 4: C++ sends `OnsChannel` and signatures without credentials, and a newline behind the header.
#[test]
fn header_of_a_cpp_client_is_read() {
    let header = "{\"code\":105,\"extFields\":{\"AccessKey\":\"\",\"OnsChannel\":\"ALIYUN\",\"Signature\":\"F+Q=\",\
        \"topic\":\"S\"},\"flag\":0,\"language\":\"CPP\",\"opaque\":0,\"remark\":\"\",\"version\":63}\n";
    with_header(header, |command| {
        let command = command.expect("a header");
        assert_eq!(
            (command.language, command.fields.get("topic")),
            ("CPP", Some("S"))
        );
        assert_eq!(command.fields.get("AccessKey"), Some(""));
    });
}

#[test]
fn null_is_absent_and_the_last_of_a_name_wins() {
    check_fields(r#"{"a":null,"b":"1"}"#, &[("b", "1")]);
    check_fields(r#"{"a":"1","b":"2","a":null}"#, &[("b", "2")]);
    with_header(
        r#"{"code":1,"code":2,"extFields":{"x":"1"},"extFields":{"a":"1","a":"2"}}"#,
        |command| {
            let command = command.expect("a header");
            assert_eq!(command.code, 2);
            assert_eq!(
                (command.fields.get("a"), command.fields.get("x")),
                (Some("2"), None)
            );
        },
    );
}

#[test]
fn escapes_are_unescaped() {
    let cases = [
        (r"TAGS\u0001TagA\u0002", "TAGS\u{1}TagA\u{2}"),
        (r#"\"\\\/\b\f\n\r\t"#, "\"\\/\u{8}\u{C}\n\r\t"),
        (r"ü\u00fc\u4E3B主", "üü主主"),
        (r"\ud83d\ude00!", "\u{1F600}!"),
        // Halves of pairs, alone, twice, or before another escape.
        (r"\ud83d", "\u{FFFD}"),
        (r"\ude00x", "\u{FFFD}x"),
        (r"\ud83d\ud83d\ude00", "\u{FFFD}\u{1F600}"),
        (r"\ud83d\n", "\u{FFFD}\n"),
        (r"\u0000", "\0"),
    ];
    for (escaped, expected) in cases {
        check_fields(&format!("{{\"i\":\"{escaped}\"}}"), &[("i", expected)]);
        check_fields(
            &format!("{{\"x{escaped}\":\"v\"}}"),
            &[(&format!("x{expected}"), "v")],
        );
    }
}

#[test]
fn raw_control_characters_are_let_through() {
    check_fields("{\"i\":\"a\u{1}b\u{2}\"}", &[("i", "a\u{1}b\u{2}")]);
}

#[test]
fn escaped_keys_are_keys() {
    with_header(
        r#"{"c\u006fde":7,"extFields":{"\u0061":"x","b":"\u0062"},"remark":"a\tb"}"#,
        |command| {
            let command = command.expect("a header");
            assert_eq!((command.code, command.remark), (7, Some("a\tb")));
            assert_eq!(
                command.fields.iter().collect::<Vec<_>>(),
                [("a", "x"), ("b", "b")]
            );
        },
    );
}

#[test]
fn quoted_numbers_are_numbers() {
    with_header(
        r#"{"code":"105","opaque":-2147483648,"version":"\u0037"}"#,
        |command| {
            let command = command.expect("a header");
            assert_eq!(
                (command.code, command.opaque, command.version),
                (105, i32::MIN, 7)
            );
        },
    );
}

#[test]
fn unknown_keys_are_skipped_whatever_they_hold() {
    let header =
        r#"{"x":{"a":[1,{"b":"]}\""},[]],"c":null},"y":[],"z":"\u0031\\","w":-1.5E+3,"code":9}"#;
    with_header(header, |command| {
        assert_eq!(command.expect("a header").code, 9)
    });
}

#[test]
fn nested_value_of_a_field_is_its_text() {
    check_fields(
        r#"{"a":{"b":[1, 2]},"c":"d"}"#,
        &[("a", r#"{"b":[1, 2]}"#), ("c", "d")],
    );
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| format!("{{\"x\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    let max = HEADER_DEPTH_MAX as usize;
    with_header(&nested(max), |command| assert!(command.is_ok()));
    check_error(&nested(max + 1), 5 + HEADER_DEPTH_MAX);
}

#[test]
fn broken_headers_name_the_byte() {
    for (header, at) in [
        ("", 0),
        ("[]", 0),
        ("{", 1),
        (r#"{"a"#, 3),
        (r#"{"a"}"#, 4),
        (r#"{"a":}"#, 5),
        (r#"{"a":1,}"#, 7),
        (r#"{"a":1 "b":2}"#, 7),
        (r#"{"a":1}x"#, 7),
        (r#"{"code":1.5}"#, 8),
        (r#"{"code":2147483648}"#, 8),
        (r#"{"code":nul}"#, 8),
        (r#"{"code":"\x"}"#, 10),
        (r#"{"code":"\u00g0"}"#, 13),
        (r#"{"extFields":[]}"#, 13),
        (r#"{"extFields":1}"#, 14),
        (r#"{"extFields":{"a":"b"}"#, 22),
        (r#"{"x":[}]}"#, 6),
        (r#"{"x":"\"#, 7),
        (r#"{'code':1}"#, 1),
    ] {
        check_error(header, at);
    }
}

/// Java puts U+FFFD in their place: a C++ client with texts in another charset is served, not cut off.
#[test]
fn bytes_that_are_not_utf8_are_replaced() {
    let frame = Frame {
        encoding: Encoding::Json,
        header: b"{\"extFields\":{\"b\":\"T\",\"i\":\"KEYS\\u0001\xD6\xF7\\u0002\"},\"opaque\":7}",
        body: b"",
        bytes: 0,
    };
    let mut scratch = Scratch::default();
    let command = Command::decode(&frame, &mut scratch).expect("a header");
    assert_eq!((command.opaque, command.fields.get("b")), (7, Some("T")));
    let properties = command.fields.get("i");
    assert_eq!(properties, Some("KEYS\u{1}\u{FFFD}\u{FFFD}\u{2}"));
}

#[test]
fn fields_are_bounded() {
    let fields = |count: usize| {
        let fields: Vec<String> = (0..count).map(|n| format!("\"{n}\":{n}")).collect();
        format!("{{\"extFields\":{{{}}}}}", fields.join(","))
    };
    let max = HEADER_FIELDS_MAX;
    with_header(&fields(max), |command| {
        assert_eq!(command.expect("a header").fields.get("255"), Some("255"));
    });
    with_header(&fields(max + 1), |command| {
        assert_eq!(command.err(), Some(HeaderError::TooManyFields { max }));
    });
}
