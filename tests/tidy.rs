//! The documents against the code, and habits that a compiler doesn't know.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All Rust files of `src`, by their path below it.
fn sources() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let src = root().join("src");
    let mut folders = vec![src.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(&src).unwrap();
                found.insert(name.to_str().unwrap().to_owned(), read(&path));
            }
        }
    }
    found
}

fn is_test_file(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("/tests.rs") || name.starts_with("testing/")
}

/// A file without its tests and without comments: what a release is built from.
fn production(text: &str) -> Vec<(usize, &str)> {
    let mut lines = Vec::new();
    let mut rest = text.lines().enumerate().peekable();
    while let Some((number, line)) = rest.next() {
        if line == "#[cfg(test)]" && rest.peek().is_some_and(|(_, next)| next.ends_with('{')) {
            // An item at the outermost level ends with a brace in the first column.
            for (_, line) in rest.by_ref() {
                if line == "}" {
                    break;
                }
            }
            continue;
        }
        if !line.trim_start().starts_with("//") {
            lines.push((number + 1, line));
        }
    }
    lines
}

/// Rows of the first table below a heading, as cells without their markup.
fn table(text: &str, heading: &str) -> Vec<Vec<String>> {
    let below = text
        .split_once(heading)
        .unwrap_or_else(|| panic!("no {heading:?}"))
        .1;
    let rows = below
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2);
    rows.map(|row| {
        let cells = row.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    })
    .collect()
}

/// Top-level modules of a table cell: `io (trait)` is `io`, `a::b` is `a`.
fn modules(cell: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut depth = 0;
    for character in cell.chars() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 => plain.push(character),
            _ => {}
        }
    }
    let names = plain.split(',').map(|name| name.trim());
    let names = names.map(|name| name.split("::").next().unwrap().to_owned());
    names.filter(|name| !name.is_empty()).collect()
}

#[test]
fn imports_are_those_of_the_architecture() {
    let architecture = read(&root().join("ARCHITECTURE.md"));
    let sources = sources();
    let of = |name: &str| name.split(['/', '.']).next().unwrap().to_owned();
    let all: BTreeSet<String> = sources.keys().map(|name| of(name)).collect();
    let mut allowed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in table(&architecture, "## Imports") {
        let names = modules(&row[0]);
        for name in &names {
            assert!(
                all.contains(name),
                "the import table names {name}, which src lacks"
            );
            let mut targets: BTreeSet<String> = match row[1].as_str() {
                "everything" => all.clone(),
                cell if cell.starts_with("nothing") => BTreeSet::new(),
                cell => modules(cell).into_iter().collect(),
            };
            targets.extend(names.iter().cloned());
            for target in &targets {
                assert!(
                    all.contains(target),
                    "{name} may import {target}, which src lacks"
                );
            }
            allowed.insert(name.clone(), targets);
        }
    }
    for name in &all {
        let is_crate_root = ["lib", "main", "testing"].contains(&name.as_str());
        assert!(
            allowed.contains_key(name) || is_crate_root,
            "{name} has no row in the import table"
        );
    }
    let mut wrong = Vec::new();
    for (file, text) in &sources {
        let Some(allowed) = allowed.get(&of(file)).filter(|_| !is_test_file(file)) else {
            continue;
        };
        for (number, line) in production(text) {
            for target in line.split("crate::").skip(1) {
                let target: String = target
                    .chars()
                    .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                    .collect();
                if all.contains(&target) && !allowed.contains(&target) {
                    wrong.push(format!("src/{file}:{number} imports {target}"));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "not in the import table:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn files_stay_small() {
    const LINES_MAX: usize = 600;
    let mut big = Vec::new();
    for (file, text) in sources() {
        // Long lists of cases are no sign of a second concept.
        if is_test_file(&file) {
            continue;
        }
        let lines = production(&text).len();
        if lines > LINES_MAX {
            big.push(format!("src/{file}: {lines}"));
        }
    }
    assert!(
        big.is_empty(),
        "more than {LINES_MAX} lines, look for the second concept:\n{}",
        big.join("\n")
    );
}

#[test]
fn no_word_that_hides_an_error() {
    let banned = [
        ".unwrap()",
        "todo!(",
        "unimplemented!(",
        "dbg!(",
        "thread::sleep",
    ];
    let mut found = Vec::new();
    for (file, text) in sources() {
        if is_test_file(&file) {
            continue;
        }
        for (number, line) in production(&text) {
            for word in banned {
                if line.contains(word) {
                    found.push(format!("src/{file}:{number} {word}"));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_file_belongs_to_a_module() {
    let sources = sources();
    let mut lost = Vec::new();
    for file in sources.keys() {
        let path = Path::new(file);
        let (folder, stem) = (
            path.parent().unwrap(),
            path.file_stem().unwrap().to_str().unwrap(),
        );
        if ["lib", "main"].contains(&stem) && folder.as_os_str().is_empty() {
            continue;
        }
        let (folder, name) = match stem {
            "mod" => (
                folder.parent().unwrap(),
                folder.file_name().unwrap().to_str().unwrap(),
            ),
            stem => (folder, stem),
        };
        let parents = if folder.as_os_str().is_empty() {
            vec!["lib.rs".to_owned(), "main.rs".to_owned()]
        } else {
            vec![
                format!("{}.rs", folder.display()),
                format!("{}/mod.rs", folder.display()),
            ]
        };
        let is_declared = parents
            .iter()
            .filter_map(|parent| sources.get(parent))
            .any(|text| {
                text.lines()
                    .any(|line| line.trim_end().ends_with(&format!("mod {name};")))
            });
        if !is_declared {
            lost.push(file.clone());
        }
    }
    assert!(lost.is_empty(), "no module declares {lost:?}");
}

/// `Code::X` of the arms of a match, as numbers.
fn handled(text: &str, codes: &BTreeMap<String, i32>) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    for (_, line) in production(text) {
        let Some((arm, _)) = line.split_once("=>") else {
            continue;
        };
        for name in arm.split(" Code::").skip(1) {
            let name: String = name
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                .collect();
            found.insert(
                *codes
                    .get(&name)
                    .unwrap_or_else(|| panic!("no request code {name}")),
            );
        }
    }
    found
}

/// Request codes by name, from the list in `codes.rs`.
fn request_codes(text: &str) -> BTreeMap<String, i32> {
    let mut codes = BTreeMap::new();
    let list = text
        .lines()
        .skip_while(|line| *line != "    RequestCode:")
        .take_while(|line| *line != "}");
    for line in list {
        if let Some((name, number)) = line.trim().trim_end_matches(',').split_once(" = ")
            && let Ok(number) = number.parse()
        {
            codes.insert(name.to_owned(), number);
        }
    }
    codes
}

/// `10, 310–312` as numbers.
fn numbers(cell: &str) -> BTreeSet<i32> {
    let parse = |text: &str| -> i32 {
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{text:?} is no code"))
    };
    let mut all = BTreeSet::new();
    for part in cell.split(',') {
        match part.split_once('–') {
            Some((first, last)) => all.extend(parse(first)..=parse(last)),
            None => _ = all.insert(parse(part)),
        }
    }
    all
}

#[test]
fn supported_requests_are_those_of_the_handlers() {
    let sources = sources();
    let codes = request_codes(&sources["protocol/codes.rs"]);
    assert!(codes.len() > 100, "the list of request codes was not found");
    let mut handled_codes = handled(&sources["broker/handler.rs"], &codes);
    handled_codes.extend(handled(&sources["namesrv/requests.rs"], &codes));
    let mut listed = BTreeSet::new();
    let mut missing_tests = Vec::new();
    for row in table(&read(&root().join("README.md")), "## Supported requests") {
        if row[0].starts_with(|c: char| c.is_ascii_digit()) {
            let shown = row[3].split('`').skip(1).step_by(2);
            let shown: Vec<_> = shown.collect();
            let absent = shown.iter().any(|path| !root().join(path).exists());
            if shown.is_empty() || absent {
                missing_tests.push(row.join(" | "));
            }
            for number in numbers(&row[0]) {
                // A range may pass over numbers that nobody has.
                if codes.values().any(|code| *code == number) {
                    assert!(listed.insert(number), "{number} is listed twice");
                }
            }
        }
    }
    let unlisted: Vec<_> = handled_codes.difference(&listed).collect();
    assert!(
        unlisted.is_empty(),
        "handled, but not in the table of README.md: {unlisted:?}"
    );
    let unhandled: Vec<_> = listed.difference(&handled_codes).collect();
    assert!(
        unhandled.is_empty(),
        "in the table of README.md, but not handled: {unhandled:?}"
    );
    assert!(
        missing_tests.is_empty(),
        "no test, or one that is not there:\n{}",
        missing_tests.join("\n")
    );
}
