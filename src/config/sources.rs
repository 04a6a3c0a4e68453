//! Where values come from: flags, then the file, then the environment.

use java_properties::{LineContent, PropertiesIter};
use std::collections::BTreeMap;
use std::path::Path;

/// A value and where it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    pub value: String,
    /// `broker.conf line 7`, `--listenPort`.
    pub origin: String,
    /// Given on the command line: a mistake in it is bad usage.
    pub is_flag: bool,
}

/// All values by key.
pub type All = BTreeMap<String, Given>;

/// Reads a file in the format of Java properties. Of a key that is there twice the last counts, as in Java, with a
/// warning.
///
/// **Errors**: it can't be read, or is not in this format; with file and line.
pub fn read_file(path: &Path, given: &mut All, warnings: &mut Vec<String>) -> Result<(), String> {
    let text = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let text = std::str::from_utf8(&text).map_err(|error| {
        let line = text[..error.valid_up_to()]
            .iter()
            .filter(|b| **b == b'\n')
            .count()
            + 1;
        format!("{} line {line}: it is not UTF-8", path.display())
    })?;
    // Editors on Windows put a mark at the start, which would become part of the first key.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let lines = PropertiesIter::new_with_encoding(text.as_bytes(), encoding_rs::UTF_8);
    for line in lines {
        let line = line.map_err(|error| {
            let at = error.line_number().map(|n| format!(" line {n}"));
            format!("{}{}: {error}", path.display(), at.unwrap_or_default())
        })?;
        let origin = format!("{} line {}", path.display(), line.line_number());
        let LineContent::KVPair(name, value) = line.consume_content() else {
            continue;
        };
        let new = Given {
            value: value.trim().to_owned(),
            origin,
            is_flag: false,
        };
        if let Some(old) = given.get(&name)
            && old.value != new.value
        {
            warnings.push(format!(
                "{}: {name} is given twice, {:?} counts and not {:?} of {}",
                new.origin, new.value, old.value, old.origin
            ));
        }
        given.insert(name, new);
    }
    Ok(())
}

/// Adds what the command line says.
pub fn add_flags(flags: &[(String, String)], given: &mut All) {
    for (name, value) in flags {
        let flag = Given {
            value: value.trim().to_owned(),
            origin: format!("--{name}"),
            is_flag: true,
        };
        given.insert(name.clone(), flag);
    }
}

/// Adds `NAMESRV_ADDR` where the key is given nowhere else; names the variables of Apache's scripts that do nothing.
pub fn add_environment(
    variable: &dyn Fn(&str) -> Option<String>,
    given: &mut All,
    notes: &mut Vec<String>,
) {
    if let Some(value) = variable("NAMESRV_ADDR") {
        let of_environment = Given {
            value,
            origin: "environment variable NAMESRV_ADDR".to_owned(),
            is_flag: false,
        };
        given
            .entry("namesrvAddr".to_owned())
            .or_insert(of_environment);
    }
    for (name, why) in [
        ("JAVA_OPT_EXT", "there is no Java here"),
        ("JAVA_OPT", "there is no Java here"),
        ("ROCKETMQ_HOME", "give the configuration file with -c"),
    ] {
        if variable(name).is_some_and(|value| !value.is_empty()) {
            notes.push(format!("environment variable {name} has no effect: {why}"));
        }
    }
}
