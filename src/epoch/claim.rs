//! How a write says under which epoch it is made, as one text (protocol section 3).

use super::{Epoch, Holder};

/// What the claim for a lock begins with. `lock` is `namespace/name`.
pub fn prefix(lock: &str) -> String {
    format!("{lock}=")
}

/// The claim of a lock's owner: `namespace/name=epoch@holder`. A client that holds several locks puts one on each line.
pub fn claim(namespace: &str, lock: &str, epoch: Epoch, holder: &Holder) -> String {
    format!("{}{epoch}@{}", prefix(&format!("{namespace}/{lock}")), holder.as_str())
}

/// `PGOPTIONS` with which every session of a program that uses libpq carries a claim, after what is there already. A blank and a
/// backslash are escaped as PostgreSQL's `options` parameter wants them.
pub fn pgoptions(before: &str, claim: &str) -> String {
    let escaped = claim.replace('\\', "\\\\").replace(' ', "\\ ");
    let separator = if before.is_empty() { "" } else { " " };
    format!("{before}{separator}-c fencedlock.claim={escaped}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_one_text() {
        let holder = Holder::new("pod a\\b_1").unwrap();
        let claim = claim("team", "writer", Epoch::new(7).unwrap(), &holder);
        assert_eq!(claim, "team/writer=7@pod a\\b_1");
        assert_eq!(pgoptions("", "x"), "-c fencedlock.claim=x");
        assert_eq!(pgoptions("-c a=b", &claim), "-c a=b -c fencedlock.claim=team/writer=7@pod\\ a\\\\b_1");
    }
}
