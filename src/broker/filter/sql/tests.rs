//! The table of Apache's answers, an evaluator that is written differently as a model, and texts that are no
//! expressions.

use super::number::Number;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const APACHE: &str = include_str!("../../../../tests/golden/sql92-apache-5.3.3.tsv");

/// What Apache takes because it stops reading where its grammar ends; refused here.
const READ_HALF_BY_APACHE: [&str; 5] = [
    "a = --5",
    "a = 007",
    "a = 5 b = 10",
    "a = 5)",
    "a LIKE 'h%'",
];
/// Apache takes no real number below 4.9E-324, 0.0 included.
const REFUSED_BY_APACHE: [&str; 1] = ["a > 0.0"];
/// What is answered where Apache throws, one letter for each column that it throws in; expressions that are unknown
/// in all of them are left out.
const THROWN_BY_APACHE: &[(&str, &str)] = &[
    ("a = 5", "-F--"),
    ("a <> 5", "-T--"),
    ("a > 4", "-F--"),
    ("a >= 5", "-F--"),
    ("a < 5", "-T--"),
    ("a <= 5", "-T--"),
    ("5 = a", "-F--"),
    ("4 < a", "-F--"),
    ("a > 3", "-T--"),
    ("a BETWEEN 1 AND 10", "-T--"),
    ("a NOT BETWEEN 1 AND 10", "-F--"),
    ("a NOT BETWEEN 10 AND 1", "-T--"),
    ("a BETWEEN b AND 10", "-T--"),
    ("a BETWEEN 0 AND b", "-T--"),
    ("a BETWEEN -10 AND 0", "-F--"),
    ("a BETWEEN 1.5 AND 9", "-T--"),
    ("a = 5 OR b = 10", "-F-F--"),
    ("a = 5 AND b = 10", "-F---"),
    ("a = 5 OR c = 'TagA'", "---T"),
    ("a > 4 OR b > 4", "-F-T--"),
    ("b > 4 OR a > 4", "-F-T--"),
    ("a > 4 AND b > 4", "-F---"),
    ("NOT (a > 4)", "-T--"),
    ("NOT (a = 5 OR b = 10)", "-T-T--"),
    ("a = -7", "-F--"),
    ("a = - 7", "-F--"),
    ("a = -(7)", "-F--"),
    ("a > -8", "-T--"),
    ("a = +5", "-F--"),
    ("+a = 5", "-F--"),
    ("a = 5 -- comment", "-F--"),
    ("a = /* why */ 5", "-F--"),
    ("a = 0", "-F--"),
    ("a > 5L", "-F--"),
    ("a > 5l", "-F--"),
    ("a = 9223372036854775807", "-F--"),
    ("b = 3000000000", "-F--"),
    ("b > 5", "-F-T-"),
    ("b > 2999999999", "-F--"),
    ("((a = 5))", "-F--"),
    ("(a = 5) = TRUE", "-F--"),
    ("a = 5 = TRUE", "-F--"),
    ("a = b = c", "T"),
    ("a = 5 aNd b = 10", "-F---"),
    ("a bEtWeEn 1 anD 10", "-T--"),
    ("a = 5 IS NOT NULL", "FTFF"),
];

/// Properties as a message carries them.
fn encode<'a>(properties: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let mut encoded = String::new();
    for (name, value) in properties {
        crate::protocol::properties::append(&mut encoded, name, value);
    }
    encoded.into_bytes()
}

fn letter(truth: Option<bool>) -> char {
    match truth {
        Some(true) => 'T',
        Some(false) => 'F',
        None => '-',
    }
}

#[test]
fn answers_are_those_of_apache() {
    let mut lines = APACHE.lines().filter(|line| !line.starts_with('#'));
    let header = lines.next().expect("the header");
    let columns: Vec<Vec<u8>> = header
        .split('\t')
        .skip(1)
        .map(|column| encode(column.split(',').filter_map(|pair| pair.split_once('='))))
        .collect();
    let (mut rows, mut all_thrown) = (0, Vec::new());
    for line in lines {
        rows += 1;
        let mut cells = line.split('\t');
        let expression = cells.next().expect("an expression");
        let cells: Vec<&str> = cells.collect();
        let compiled = compile(expression);
        if cells == ["REFUSED"] {
            let is_refused = !REFUSED_BY_APACHE.contains(&expression);
            assert_eq!(compiled.is_err(), is_refused, "{expression}: {compiled:?}");
            continue;
        }
        if READ_HALF_BY_APACHE.contains(&expression) {
            assert!(compiled.is_err(), "{expression}");
            continue;
        }
        let program = compiled.unwrap_or_else(|error| panic!("{expression}: {error}"));
        let answers: Vec<char> = columns
            .iter()
            .map(|c| letter(program.evaluate(c)))
            .collect();
        let mut thrown = String::new();
        for (cell, answer) in cells.iter().zip(&answers) {
            match *cell {
                "!" => thrown.push(*answer),
                cell => assert_eq!(cell, answer.to_string(), "{expression}: {answers:?}"),
            }
        }
        if thrown.contains(['T', 'F']) {
            all_thrown.push((expression, thrown));
        }
    }
    assert!(rows > 150, "{rows} rows");
    let all_thrown: Vec<(&str, &str)> = all_thrown.iter().map(|(e, t)| (*e, &**t)).collect();
    assert_eq!(all_thrown, THROWN_BY_APACHE);
}

#[test]
fn errors_name_place_and_token() {
    for (expression, position, token, reason) in [
        ("", 1, "end of expression", "expected a property"),
        ("a = ", 5, "end of expression", "expected a property"),
        ("a = 5 b = 10", 7, "b", "expected the end"),
        ("ü = 5", 1, "ü", "unknown character"),
        ("a = 'ü' AND b !", 15, "!", "unknown character"),
        ("a > 'x'", 5, "'x'", "only numbers"),
        ("a = NULL", 5, "NULL", "only IS NULL"),
        ("(a = 1", 7, "end of expression", "expected )"),
        ("a IN (5)", 7, "5", "expected a text"),
        ("(a = 5 AND b) > 3", 2, "a = 5 AND b", "only numbers"),
        ("a BETWEEN 10 AND 1", 11, "10", "the lower bound"),
        (
            "x = 99999999999999999999",
            5,
            "99999999999999999999",
            "more than 64 bits",
        ),
        ("x = 010", 5, "010", "starts with 0"),
        ("x = 1x", 5, "1x", "not a number"),
        ("x = 'y", 5, "'y", "no closing quote"),
        ("x = 1 /* y", 7, "/*", "no end"),
        ("TRUE = 'x'", 8, "'x'", "no other constant"),
        ("NOT 5", 5, "5", "expected a condition"),
        ("a LIKE 'x'", 3, "LIKE", "expected the end"),
        ("a NOT LIKE 'x'", 7, "LIKE", "expected BETWEEN"),
    ] {
        let error = compile(expression).expect_err(expression);
        assert_eq!(
            (error.position, &*error.token),
            (position, token),
            "{expression}: {error}"
        );
        assert!(error.reason.contains(reason), "{expression}: {error}");
    }
}

#[test]
fn what_is_too_large_is_refused() {
    let at_depth = |depth: usize| format!("{}a{}", "(".repeat(depth), ")".repeat(depth));
    assert!(compile(&at_depth(DEPTH_MAX as usize)).is_ok());
    let error = compile(&at_depth(DEPTH_MAX as usize + 1)).expect_err("too deep");
    assert!(error.reason.contains("inside one another"), "{error}");
    assert!(compile(&"-".repeat(5000)).is_err(), "a comment");
    assert!(compile(&format!("a = {}1", "- ".repeat(5000))).is_err());
    assert!(
        compile(&format!("a{}", " IS NULL".repeat(3000))).is_err(),
        "a chain"
    );
    assert!(compile(&format!("a{}", " IS NULL".repeat(200))).is_ok());

    let terms = |count: usize| vec!["a = 1"; count].join(" OR ");
    assert!(compile(&terms(600)).is_ok(), "wide is not deep");
    let error = compile(&terms(NODES_MAX)).expect_err("too many parts");
    assert!(error.reason.contains("parts"), "{error}");

    let names = |count: usize| {
        (0..count)
            .map(|i| format!("p{i}"))
            .collect::<Vec<_>>()
            .join(" OR ")
    };
    assert!(compile(&names(PROPERTIES_MAX)).is_ok());
    let error = compile(&names(PROPERTIES_MAX + 1)).expect_err("too many properties");
    assert!(error.reason.contains("properties"), "{error}");

    let error = compile(&format!("a = '{}'", "x".repeat(EXPRESSION_BYTES_MAX))).expect_err("long");
    assert!(error.reason.contains("longer than"), "{error}");
}

#[test]
fn properties_are_found_as_they_are_stored() {
    let program = compile("k = 'v'").expect("an expression");
    for (properties, expected) in [
        (&b"k\x01v"[..], Some(true)),
        (b"k\x01v\x02", Some(true)),
        (b"x\x01\xFF\x02k\x01v\x02", Some(true)),
        (b"k\x01\xFF\x02", Some(false)),
        (b"k\x01w\x02k\x01v\x02", Some(true)),
        (b"k\x01v\x02k\x01w\x02", Some(false)),
        (b"K\x01v\x02", None),
        (b"kk\x01v\x02", None),
        (b"k\x01\x02", None),
        (b"k\x02v", None),
        (b"", None),
    ] {
        assert_eq!(program.evaluate(properties), expected, "{properties:?}");
    }
    assert!(!program.matches_record(b"short"));
}

#[test]
fn numbers_are_read_as_java_reads_them() {
    for (text, expected) in [
        ("5", Some(Number::Whole(5))),
        (" -5\t", Some(Number::Whole(-5))),
        ("+5", Some(Number::Whole(5))),
        ("007", Some(Number::Whole(7))),
        ("9223372036854775807", Some(Number::Whole(i64::MAX))),
        (
            "9223372036854775808",
            Some(Number::Real(9.223_372_036_854_776e18)),
        ),
        ("5.", Some(Number::Real(5.0))),
        (".5", Some(Number::Real(0.5))),
        ("5e-1", Some(Number::Real(0.5))),
        ("-0.0", Some(Number::Real(-0.0))),
        ("1e400", None),
        ("", None),
        (".", None),
        ("+", None),
        ("5e", None),
        ("5 5", None),
        ("inf", None),
        ("NaN", None),
        ("0x10", None),
        ("5f", None),
        ("5٣", None),
    ] {
        assert_eq!(Number::parse(text.as_bytes()), expected, "{text}");
    }
}

// ---- the model ----

/// An expression as a tree.
#[derive(Clone, Debug)]
enum Tree {
    Property(&'static str),
    Number(String),
    Text(&'static str),
    Truth(&'static str),
    Negate(Box<Tree>),
    Not(Box<Tree>),
    Join(&'static str, Vec<Tree>),
    Compare(&'static str, Box<Tree>, Box<Tree>),
    Null(bool, Box<Tree>),
    Between(bool, &'static str, i64, i64),
    In(bool, &'static str, Vec<&'static str>),
    Search(bool, &'static str, &'static str, &'static str),
}

const NAMES: [&str; 4] = ["a", "b", "c_1", "$d"];
const TEXTS: [&str; 8] = ["", "5", "5.0", "-3", "hello", "true", "it's", "ell"];

/// Conditions that the parser takes.
fn condition() -> impl Strategy<Value = Tree> {
    let name = prop::sample::select(&NAMES[..]);
    let text = prop::sample::select(&TEXTS[..]);
    let number = prop_oneof![
        (0_i64..12).prop_map(|n| n.to_string()),
        Just("5.0".to_owned()),
        Just("2.5e1".to_owned()),
        Just(i64::MAX.to_string()),
    ];
    let quantity = prop_oneof![
        3 => name.clone().prop_map(Tree::Property),
        2 => number.clone().prop_map(Tree::Number),
        1 => number.prop_map(|n| Tree::Negate(Box::new(Tree::Number(n)))),
    ];
    let any_value = prop_oneof![3 => quantity.clone(), 1 => text.clone().prop_map(Tree::Text)];
    let order = prop::sample::select(&["<", "<=", ">", ">="][..]);
    let equality = prop::sample::select(&["=", "<>"][..]);
    let search = prop::sample::select(&["CONTAINS", "STARTSWITH", "ENDSWITH"][..]);
    let compare = |(op, left, right)| Tree::Compare(op, Box::new(left), Box::new(right));
    let leaf = prop_oneof![
        prop::sample::select(&["TRUE", "FALSE", "NULL"][..]).prop_map(Tree::Truth),
        name.clone().prop_map(Tree::Property),
        (order, quantity.clone(), quantity).prop_map(compare),
        (equality, any_value.clone(), any_value.clone()).prop_map(compare),
        (any::<bool>(), any_value).prop_map(|(not, of)| Tree::Null(not, Box::new(of))),
        (any::<bool>(), name.clone(), -5_i64..5, 0_i64..9)
            .prop_map(|(not, name, low, more)| Tree::Between(not, name, low, low + more)),
        (
            any::<bool>(),
            name.clone(),
            prop::collection::vec(text.clone(), 1..4)
        )
            .prop_map(|(not, name, texts)| Tree::In(not, name, texts)),
        (any::<bool>(), name, search, text)
            .prop_map(|(not, name, search, text)| Tree::Search(not, name, search, text)),
    ];
    leaf.prop_recursive(4, 40, 4, |inner| {
        let join = prop::sample::select(&["AND", "OR"][..]);
        prop_oneof![
            (join, prop::collection::vec(inner.clone(), 2..5))
                .prop_map(|(word, parts)| Tree::Join(word, parts)),
            inner.prop_map(|of| Tree::Not(Box::new(of))),
        ]
    })
}

fn negation(is_negated: bool) -> &'static str {
    if is_negated { "NOT " } else { "" }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn print(tree: &Tree) -> String {
    match tree {
        Tree::Property(name) => (*name).to_owned(),
        Tree::Number(number) => number.clone(),
        Tree::Text(text) => quoted(text),
        Tree::Truth(word) => (*word).to_owned(),
        Tree::Negate(of) => format!("- {}", print(of)),
        Tree::Not(of) => format!("NOT ({})", print(of)),
        Tree::Join(word, parts) => {
            let parts: Vec<String> = parts
                .iter()
                .map(|part| format!("({})", print(part)))
                .collect();
            parts.join(&format!(" {word} "))
        }
        Tree::Compare(op, left, right) => format!("{} {op} {}", print(left), print(right)),
        Tree::Null(not, of) => format!("{} IS {}NULL", print(of), negation(*not)),
        Tree::Between(not, name, low, high) => {
            format!("{name} {}BETWEEN {low} AND {high}", negation(*not))
        }
        Tree::In(not, name, texts) => {
            let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
            format!("{name} {}IN ({})", negation(*not), texts.join(", "))
        }
        Tree::Search(not, name, search, text) => {
            format!("{name} {}{search} {}", negation(*not), quoted(text))
        }
    }
}

type Properties = BTreeMap<&'static str, &'static str>;

/// A value of the model: a text, a number, or null. Numbers are wide enough for all that the model makes.
#[derive(Clone, PartialEq, Debug)]
enum Plain {
    Null,
    Text(&'static str),
    Number(f64),
}

impl Plain {
    fn number(&self) -> Option<f64> {
        match self {
            Plain::Null => None,
            Plain::Text(text) => text.parse().ok(),
            Plain::Number(number) => Some(*number),
        }
    }
}

fn plain(tree: &Tree, properties: &Properties) -> Plain {
    match tree {
        Tree::Property(name) => properties
            .get(name)
            .filter(|text| !text.is_empty())
            .map_or(Plain::Null, |text| Plain::Text(text)),
        Tree::Number(number) => Plain::Number(number.parse().expect("a number")),
        Tree::Text(text) => Plain::Text(text),
        Tree::Negate(of) => plain(of, properties)
            .number()
            .map_or(Plain::Null, |number| Plain::Number(-number)),
        other => panic!("{other:?} is no value"),
    }
}

fn model(tree: &Tree, properties: &Properties) -> Option<bool> {
    match tree {
        Tree::Truth("TRUE") => Some(true),
        Tree::Truth("FALSE") => Some(false),
        Tree::Truth(_) => None,
        Tree::Property(_) => (plain(tree, properties) != Plain::Null).then_some(false),
        Tree::Not(of) => model(of, properties).map(|truth| !truth),
        Tree::Join(word, parts) => {
            let truths: Vec<_> = parts.iter().map(|part| model(part, properties)).collect();
            let decisive = Some(*word == "OR");
            if truths.contains(&decisive) {
                decisive
            } else if truths.contains(&None) {
                None
            } else {
                Some(*word == "AND")
            }
        }
        Tree::Compare(op, left, right) => {
            let (left, right) = (plain(left, properties), plain(right, properties));
            match *op {
                "=" => model_equal(&left, &right),
                "<>" => model_equal(&left, &right).map(|truth| !truth),
                op => {
                    let (left, right) = (left.number()?, right.number()?);
                    Some(match op {
                        "<" => left < right,
                        "<=" => left <= right,
                        ">" => left > right,
                        _ => left >= right,
                    })
                }
            }
        }
        Tree::Null(not, of) => Some((plain(of, properties) == Plain::Null) != *not),
        Tree::Between(not, name, low, high) => {
            let number = plain(&Tree::Property(name), properties).number()?;
            Some((*low as f64 <= number && number <= *high as f64) != *not)
        }
        Tree::In(not, name, texts) => match plain(&Tree::Property(name), properties) {
            Plain::Text(text) => Some(texts.contains(&text) != *not),
            _ => None,
        },
        Tree::Search(not, name, search, text) => {
            let Plain::Text(value) = plain(&Tree::Property(name), properties) else {
                return Some(false);
            };
            let is_found = match *search {
                "CONTAINS" => value.contains(text),
                "STARTSWITH" => value.starts_with(text),
                _ => value.ends_with(text),
            };
            Some(!text.is_empty() && is_found != *not)
        }
        Tree::Number(_) | Tree::Text(_) | Tree::Negate(_) => panic!("{tree:?} is no condition"),
    }
}

fn model_equal(left: &Plain, right: &Plain) -> Option<bool> {
    match (left, right) {
        (Plain::Null, Plain::Null) => Some(true),
        (Plain::Null, _) => None,
        (_, Plain::Null) => Some(false),
        (Plain::Text(left), Plain::Text(right)) => Some(left == right),
        _ => Some(left.number()? == right.number()?),
    }
}

fn properties() -> impl Strategy<Value = Properties> {
    let name = prop::sample::select(&NAMES[..]);
    let text = prop::sample::select(&TEXTS[..]);
    prop::collection::btree_map(name, text, 0..4)
}

proptest! {
    #[test]
    fn answers_are_those_of_the_model(tree in condition(), properties in properties()) {
        let expression = print(&tree);
        let program = compile(&expression).map_err(|error| {
            TestCaseError::fail(format!("{expression}: {error}"))
        })?;
        let encoded = encode(properties.iter().map(|(name, value)| (*name, *value)));
        let expected = model(&tree, &properties);
        prop_assert_eq!(program.evaluate(&encoded), expected, "{} over {:?}", expression, properties);
    }

    /// Any text is compiled or refused with a place inside it; what is compiled can be evaluated.
    #[test]
    fn no_text_is_too_strange(text in ".{0,60}", properties in prop::collection::vec(any::<u8>(), 0..40)) {
        check_any(&text, &properties)?;
    }

    /// Texts that get further: words of the language in any order.
    #[test]
    fn no_order_of_words_is_too_strange(
        words in prop::collection::vec(prop::sample::select(&[
            "a", "b", "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "NULL", "IS", "CONTAINS", "ENDSWITH", "=", "<>", "<",
            ">=", "(", ")", ",", "+", "-", "5", "5.5", "'x'", "'", "--", "/*", "*/", ".", "0", "1E", "ü",
        ][..]), 0..30),
        spaced in any::<bool>(),
    ) {
        check_any(&words.join(if spaced { " " } else { "" }), b"a\x015\x02b\x01x\x02")?;
    }

    /// A valid expression with a piece taken out or doubled.
    #[test]
    fn no_damage_is_too_strange(tree in condition(), from in 0_usize..80, count in 0_usize..20, doubled in any::<bool>()) {
        let whole: Vec<char> = print(&tree).chars().collect();
        let from = from.min(whole.len());
        let to = (from + count).min(whole.len());
        let piece: &[char] = if doubled { &whole[from..to] } else { &[] };
        let damaged: String = [&whole[..to], piece, &whole[to..]].concat().into_iter().collect();
        let cut: String = [&whole[..from], &whole[to..]].concat().into_iter().collect();
        check_any(&damaged, b"a\x015\x02")?;
        check_any(&cut, b"a\x015\x02")?;
    }
}

fn check_any(text: &str, properties: &[u8]) -> Result<(), TestCaseError> {
    match compile(text) {
        Ok(program) => {
            program.evaluate(properties);
        }
        Err(error) => {
            prop_assert!(error.position >= 1);
            prop_assert!(
                error.position <= text.chars().count() + 1,
                "{}: {}",
                text,
                error
            );
        }
    }
    Ok(())
}
