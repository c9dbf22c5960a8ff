-- The guard of one write boundary. `@fence@` and its like are names that fencedlock quotes; `@lock@` is a literal.
--
-- A write claims with one setting: fencedlock.claim = '<namespace>/<lock>=<epoch>@<holder>', one line per lock.
-- Every guarded statement takes ROW SHARE on the fence table (the fast path of the lock manager: no tuple is locked or written) and
-- keeps it to the end of its transaction. Activation takes EXCLUSIVE on it: it waits for every open guarded transaction, and nothing
-- guarded starts in between. The epoch and a hash of the claim are in sequences because a sequence has no versions: an old snapshot
-- sees the value of now. An epoch that is not the fence's is refused by comparing its digits; the holder, under the right epoch, by 64
-- bits of hash. What the fast path does not admit is compared once more with the fence's own row, in full.

create table if not exists @schema@.@fence@ (
  only_row     boolean primary key default true check (only_row),
  boundary     text        not null,              -- namespace/name of the WriteBoundary
  lock         text        not null,              -- namespace/name of the FencedLock
  epoch        bigint      not null default 0 check (epoch between 0 and 9007199254740991),
  claim        text,                              -- null: nobody owns the lock, and every claim is refused
  activated_at timestamptz,
  nonce        text        not null default gen_random_uuid()::text,
  declared     text        not null default '',   -- the uid of the WriteBoundary that this was installed for
  generation   bigint      not null default 0,    -- and its generation
  guard        text        not null default '',   -- the hash of what was installed
  guarded      oid[]       not null default '{}'  -- the tables that got the trigger
);
create sequence if not exists @schema@.@epoch@ minvalue 0 maxvalue 9007199254740991 start 0 no cycle;
create sequence if not exists @schema@.@claim@ minvalue -9223372036854775808 start 0 no cycle;
create sequence if not exists @schema@.@refused@ no cycle;  -- survives the rollback of what was refused; may jump by 32 after a crash
create table if not exists @schema@.@seen@ (role text not null, application text not null, claim text, at timestamptz not null);
insert into @schema@.@fence@ (boundary, lock) values (@boundary@, @lock@) on conflict (only_row) do nothing;
