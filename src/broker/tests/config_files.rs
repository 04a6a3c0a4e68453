//! Configuration files as Apache writes them.

use std::io::Read;
use std::path::PathBuf;

/// A file below `config/` of one of the recorded stores of Apache 4.9.8.
pub fn apache_file(store: &str, name: &str) -> Vec<u8> {
    let archive = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/apache-stores")
        .join(format!("apache-4.9.8-store-{store}.tar.xz"));
    let file = std::fs::File::open(archive).unwrap();
    let mut archive = tar::Archive::new(xz2::read::XzDecoder::new(file));
    let wanted = format!("config/{name}");
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        if entry.path().unwrap().ends_with(&wanted) {
            let mut contents = Vec::new();
            entry.read_to_end(&mut contents).unwrap();
            return contents;
        }
    }
    panic!("{wanted} is in no archive of {store}");
}

/// JSON in any dialect of fastjson.
pub fn json(text: &[u8]) -> serde_json::Value {
    crate::protocol::bodies::decode(text).unwrap()
}

/// Every value of `before` is in `after`, at the same place.
pub fn assert_kept(before: &serde_json::Value, after: &serde_json::Value, path: &str) {
    match before {
        serde_json::Value::Object(fields) => {
            for (key, value) in fields {
                let path = format!("{path}/{key}");
                let Some(kept) = after.get(key) else {
                    panic!("{path} is lost");
                };
                assert_kept(value, kept, &path);
            }
        }
        other => assert_eq!(other, after, "{path}"),
    }
}

/// Names that must never become a path, a topic or a group.
pub fn malicious_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "",
        " ",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc/passwd",
        "a\0b",
        "a b",
        "a\nb",
        "a\\b",
        "主题",
        "a:b",
        "a@b",
        "a+b",
        "a,b",
        "%RETRY%../x",
        "\u{202e}x",
    ]
    .map(str::to_owned)
    .to_vec();
    names.push("x".repeat(300));
    names.push(format!("%RETRY%{}", "x".repeat(300)));
    names
}
