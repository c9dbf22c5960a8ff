//! How programs spell the settings of a leader election: flags, environment variables, keys of configuration files. One vocabulary for all
//! three, because the same words are written with dashes, underscores, dots or humps.
//!
//! Start with [`classify`] for a name and [`of_arguments`] for a command line.

use std::time::Duration;

/// What a setting says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum What {
    /// Whether there is an election.
    Switch,
    /// Whether there is none.
    Disable,
    /// The Lease's name.
    Name,
    /// The Lease's namespace.
    Namespace,
    /// How long a lease lasts.
    LeaseDuration,
    /// When a leader gives up that cannot renew.
    RenewDeadline,
    /// The pause between two attempts.
    RetryPeriod,
    /// The longest that one request takes.
    RequestTimeout,
    /// Who the candidate is.
    Identity,
    /// What only a framework reads that elects unless it is told not to.
    Framework,
    /// Something else about an election.
    Other,
}

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) what: What,
    /// The value; `None` when it is only known where it runs.
    pub(super) value: Option<String>,
    /// Where it is set: `flag --leader-elect`.
    pub(super) place: String,
    /// The ConfigMap and its key that hold the value; without the ConfigMap, the variable.
    pub(super) reference: Option<(String, String)>,
    /// Whether its name alone tells that it is about an election. `RENEW_DEADLINE` could be about something else.
    pub(super) certain: bool,
}

/// What a name is about, and whether the name alone tells that it is about an election.
pub(super) fn classify(name: &str) -> Option<(What, bool)> {
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    let stem = ["leaderelection", "leaderelector", "leaderelect"].into_iter().find_map(|stem| name.split_once(stem));
    if let Some((before, after)) = stem {
        return Some((of_election(before, after), true));
    }
    let what = match name.as_str() {
        "electionid" | "election" | "electionname" => return Some((What::Name, true)),
        "electleader" | "enableelection" => return Some((What::Switch, true)),
        // Knative's framework again.
        "disableha" => return Some((What::Disable, true)),
        "leaselockname" | "leasename" | "lockobjectname" | "leaseresourcename" => What::Name,
        "leaselocknamespace" | "leasenamespace" | "lockobjectnamespace" => What::Namespace,
        "identity" | "candidateid" => What::Identity,
        other if other.ends_with("podname") => What::Identity,
        other => duration_of(other)?,
    };
    Some((what, false))
}

fn of_election(before: &str, after: &str) -> What {
    let is_negated = ["disable", "no", "skip", "without"].iter().any(|word| before.ends_with(word));
    // "leaderElection.leaderElect" and "leaderElectionConfig.enabled" of a configuration file arrive as one word.
    let after = after.strip_prefix("leaderelect").unwrap_or(after);
    let after = if after.starts_with("configmap") { after } else { after.strip_prefix("config").unwrap_or(after) };
    if before.ends_with("config") {
        // "CONFIG_LEADERELECTION_NAME" names a ConfigMap of Knative's framework.
        return if after == "name" { What::Framework } else { What::Other };
    }
    match after {
        "" | "enabled" | "enable" | "isenabled" | "active" if is_negated => What::Disable,
        "" | "enabled" | "enable" | "isenabled" | "active" => What::Switch,
        "disable" | "disabled" => What::Disable,
        "id" | "name" | "resourcename" | "resourceid" | "configmap" | "configmapname" | "cmname" | "lockname" | "lockid" | "lease"
        | "leasename" | "leaseid" | "key" | "objectname" => What::Name,
        "namespace" | "resourcenamespace" | "leasenamespace" | "locknamespace" | "ns" | "objectnamespace" => What::Namespace,
        "identity" | "candidateid" | "podname" | "holder" => What::Identity,
        other => duration_of(other).unwrap_or(What::Other),
    }
}

/// Which duration a name means, whatever its unit.
fn duration_of(name: &str) -> Option<What> {
    let name = ["inseconds", "seconds", "secs", "sec", "millis", "ms"].iter().find_map(|unit| name.strip_suffix(unit)).unwrap_or(name);
    Some(match name {
        "leaseduration" | "leasettl" | "leaseperiod" | "leaselength" => What::LeaseDuration,
        "renewdeadline" | "renewduration" | "renewtimeout" => What::RenewDeadline,
        "retryperiod" | "retryinterval" | "renewinterval" => What::RetryPeriod,
        "requesttimeout" => What::RequestTimeout,
        _ => return None,
    })
}

/// The settings on a command line.
pub(super) fn of_arguments<'a>(arguments: impl Iterator<Item = &'a str>) -> Vec<Setting> {
    // A shell's command line is one argument.
    let words: Vec<&str> = arguments
        .flat_map(|argument| {
            let is_line = argument.contains("-lead") || argument.contains("--") || argument.contains("LEADER");
            if is_line { argument.split_whitespace().collect() } else { vec![argument] }
        })
        .collect();
    let mut settings = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let Some(rest) = word.strip_prefix('-') else {
            // "LEADER_ELECT=true manager" of a shell.
            let assigned =
                word.split_once('=').filter(|(name, _)| name.bytes().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_'));
            settings.extend(assigned.and_then(|(name, value)| {
                let value = value.trim_matches(['"', '\'']);
                of_name(name, Some(value).filter(|value| !value.contains('$')), || format!("variable {name}"))
            }));
            continue;
        };
        let rest = rest.trim_start_matches('-');
        let (name, given) = rest.split_once('=').map_or((rest, None), |(name, value)| (name, Some(value)));
        let Some((what, certain)) = classify(name) else { continue };
        let value = match (given, what) {
            (Some(value), _) => value,
            // Go's flags take no value after a blank for these: "--leader-elect false" switches it on.
            (None, What::Switch | What::Disable) => "true",
            (None, _) => words.get(index + 1).copied().filter(|next| !next.starts_with('-')).unwrap_or_default(),
        };
        let value = value.trim_matches(['"', '\'']);
        // "$(POD_NAME)" is replaced where it runs.
        let variable = value.strip_prefix("$(").and_then(|rest| rest.strip_suffix(')')).map(|name| (String::new(), name.to_owned()));
        let value = (!value.contains('$')).then(|| value.to_owned());
        let place = format!("flag -{}{name}", if word.starts_with("--") { "-" } else { "" });
        settings.push(Setting { what, value, place, reference: variable, certain });
    }
    settings
}

/// A setting by its name and value, of an environment variable or a configuration file.
pub(super) fn of_name(name: &str, value: Option<&str>, place: impl FnOnce() -> String) -> Option<Setting> {
    let (what, certain) = classify(name)?;
    let millis = ["_ms", "-ms", "Ms", "MS", "millis", "Millis"].iter().any(|unit| name.ends_with(unit));
    let value = value.map(|value| {
        if millis && !value.is_empty() && value.bytes().all(|c| c.is_ascii_digit()) { format!("{value}ms") } else { value.to_owned() }
    });
    Some(Setting { what, value, place: place(), reference: None, certain })
}

/// Whether a value is yes or no.
pub(super) fn truth(value: &str) -> Option<bool> {
    match value.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" | "t" | "enabled" => Some(true),
        "false" | "0" | "no" | "off" | "f" | "disabled" | "none" => Some(false),
        _ => None,
    }
}

/// A duration as Go writes it (`1m30s`), or a number of seconds.
pub(super) fn duration(value: &str) -> Option<Duration> {
    let mut rest = value.trim();
    if let Ok(seconds) = rest.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let (unit, factor) = [("ms", 0.001), ("us", 0.000_001), ("ns", 0.000_000_001), ("h", 3600.0), ("m", 60.0), ("s", 1.0)]
            .into_iter()
            .find(|(unit, _)| rest.starts_with(unit))?;
        rest = &rest[unit.len()..];
        total = total.checked_add(Duration::try_from_secs_f64(number * factor).ok()?)?;
    }
    (total > Duration::ZERO).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spellings_of_an_election() {
        for (name, what) in [
            ("leader-elect", What::Switch),
            ("enable-leader-election", What::Switch),
            ("LEADER_ELECTION_ENABLED", What::Switch),
            ("leaderElection.leaderElect", What::Switch),
            ("leaderElectionConfig.enabled", What::Switch),
            ("CONFIG_LEADERELECTION_NAME", What::Framework),
            ("disable-ha", What::Disable),
            ("disable-leader-election", What::Disable),
            ("leader-election-id", What::Name),
            ("election-id", What::Name),
            ("leaderElection.resourceName", What::Name),
            ("leader-elect-resource-namespace", What::Namespace),
            ("leader-elect-lease-duration", What::LeaseDuration),
            ("LEADER_ELECTION_LEASE_DURATION_SECONDS", What::LeaseDuration),
            ("leader-elect-renew-deadline", What::RenewDeadline),
            ("leader-election-retry-period", What::RetryPeriod),
            ("leader-election-identity", What::Identity),
        ] {
            assert_eq!(classify(name), Some((what, true)), "{name}");
        }
        assert_eq!(classify("RENEW_DEADLINE"), Some((What::RenewDeadline, false)));
        for name in ["metrics-addr", "selection", "reelection-count-x", "deadline", "leader"] {
            assert_eq!(classify(name), None, "{name}");
        }
    }

    #[test]
    fn command_lines_are_taken_apart() {
        let of = |arguments: &[&str]| of_arguments(arguments.iter().copied()).into_iter().map(|s| (s.what, s.value)).collect::<Vec<_>>();
        assert_eq!(of(&["--leader-elect", "--v=2"]), [(What::Switch, Some("true".into()))]);
        assert_eq!(of(&["--leader-elect=false"]), [(What::Switch, Some("false".into()))]);
        assert_eq!(of(&["--leader-elect", "false"]), [(What::Switch, Some("true".into()))]);
        assert_eq!(of(&["-leader-election-id", "x"]), [(What::Name, Some("x".into()))]);
        assert_eq!(of(&["--leader-election-namespace=$(NS)"]), [(What::Namespace, None)]);
        assert_eq!(of(&["LEADER_ELECT=\"true\" exec manager"]), [(What::Switch, Some("true".into()))]);
        assert_eq!(of(&["exec manager --leader-elect --zap-devel"]), [(What::Switch, Some("true".into()))]);
    }

    #[test]
    fn durations_as_programs_write_them() {
        let ms = |text: &str| duration(text).map(|d| d.as_millis());
        assert_eq!(
            [ms("15s"), ms("1m30s"), ms("15"), ms("500ms"), ms("1.5s")],
            [Some(15_000), Some(90_000), Some(15_000), Some(500), Some(1500)]
        );
        assert_eq!([ms(""), ms("soon"), ms("15x"), ms("-3s")], [None; 4]);
    }
}
