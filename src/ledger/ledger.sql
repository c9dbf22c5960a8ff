-- A ledger of what was asked of a receiver that cannot refuse an obsolete owner. Names in @…@ are quoted by fencedlock.
--
-- An operation is one attempt at a work item:  intent -> sent -> confirmed | failed | unknown,  and what is not known is reconciled:
-- happened | absent | compensated. Each step is a transaction that is committed before the next one begins. The table is guarded like
-- every table of the lock, so a step is the present owner's or is refused. What a person finds out goes into a table of its own, which is
-- nobody else's. Nothing is ever deleted. Every function runs with its caller's rights: one that ran with its owner's could go around the guard.

create table if not exists @table@ (
  work_item       text        not null check (work_item <> '' and octet_length(work_item) <= 512),
  attempt         int         not null check (attempt between 1 and 10000),
  state           text        not null check (state in ('intent', 'sent', 'confirmed', 'failed', 'unknown', 'reconciled')),
  effect          text        check (effect in ('happened', 'absent', 'compensated')),  -- what the owner found out by asking the receiver
  epoch           bigint      not null,                          -- of the owner that moved it last
  holder          text        not null,
  idempotency_key text        check (idempotency_key <> ''),     -- null: the receiver takes a repeated request for another one
  key_ttl         interval,                                      -- how long it remembers the key; null: for ever
  request         jsonb,
  answer          text,                                          -- what the receiver said, or why that is not known, or how it was found out
  sends           int         not null default 0,                -- how many times it was about to be sent, under the same key
  intended_at     timestamptz not null default clock_timestamp(),
  first_sent_at   timestamptz,
  sent_at         timestamptz,
  ended_at        timestamptz,
  primary key (work_item, attempt),
  check ((state = 'intent') = (sent_at is null)),
  check ((state = 'reconciled') = (effect is not null))
);
create index if not exists @open_index@ on @table@ (first_sent_at) where state in ('sent', 'unknown');
create index if not exists @again_index@ on @table@ (work_item) where attempt > 1;

create table if not exists @settlements@ (
  id         bigint generated always as identity primary key,    -- the latest one of an operation counts; the earlier ones are its history
  work_item  text        not null,
  attempt    int         not null,
  effect     text        not null check (effect in ('happened', 'absent', 'compensated')),
  settled_by text        not null check (settled_by <> ''),
  role       text        not null default session_user,
  why        text        not null check (why <> ''),
  settled_at timestamptz not null default clock_timestamp(),
  foreign key (work_item, attempt) references @table@
);
create index if not exists @settlements_index@ on @settlements@ (work_item, attempt, id desc);

-- Operations as they are known now: what a person found out counts more than what an owner did.
create or replace view @operations@ as
  select o.work_item, o.attempt, case when s.id is null then o.state else 'reconciled' end as state, coalesce(s.effect, o.effect) as effect,
         o.epoch, o.holder, o.idempotency_key, o.sends, o.intended_at, o.sent_at, o.ended_at, o.answer,
         s.settled_by, s.role as settled_role, s.why, s.settled_at,
         o.state in ('sent', 'unknown') and s.id is null or c.contradicted as unsettled,
         c.contradicted, o.first_sent_at
    from @table@ o
    left join lateral (select * from @settlements@ s where s.work_item = o.work_item and s.attempt = o.attempt order by s.id desc limit 1) s on true
    -- The worker said otherwise after the person did.
    cross join lateral (select coalesce(o.state = 'confirmed' and s.effect = 'absent' and s.settled_at < o.ended_at, false) as contradicted) c;

-- Work items that may have taken effect more than once: sent in several attempts, until a person has looked at each of them after the last
-- was sent.
create or replace view @repeated@ as
  select work_item, count(*) as attempts, count(*) filter (where settled_at > last_sent) as reviewed
    from (select *, max(sent_at) over (partition by work_item) as last_sent
            from @operations@ where sent_at is not null and state <> 'failed' and work_item in (select a.work_item from @table@ a where a.attempt > 1)) o
   group by work_item having count(*) > 1 and count(*) filter (where settled_at > last_sent) < count(*);

-- Who the caller is, once it is certain that it owns the lock and is alone at the work item until its transaction ends.
create or replace function @owner@(item text, out epoch bigint, out holder text)
  language plpgsql set search_path = pg_catalog, pg_temp as $body$
declare claimed text;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = '25001', message = 'fencedlock: a ledger is written to at READ COMMITTED';
  end if;
  if not exists (select from pg_trigger t where t.tgrelid = @table_oid@ and starts_with(t.tgname::text, 'fencedlock_') and t.tgenabled = 'A') then
    raise exception using errcode = 'FL004', message = 'fencedlock: ledger ' || @table_oid@::text || ' is not guarded, so anybody could claim to own the lock',
      hint = 'List it in spec.postgres.tables of a WriteBoundary of the lock.';
  end if;
  -- What is about to be believed has to be on disk.
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'on', true);
  end if;
  -- The guard judges the claim, and keeps the next owner out until this transaction ends.
  update @table@ set state = state where false;
  -- Other threads that are at this work item, and people who settle it, wait.
  perform pg_advisory_xact_lock(hashtextextended(item, @table_oid@::oid::bigint));
  select substr(c, length(@prefix@) + 1) into claimed
    from unnest(string_to_array(current_setting('fencedlock.claim', true), chr(10))) c where starts_with(c, @prefix@) limit 1;
  if claimed is null then
    raise exception using errcode = 'FL001', message = 'fencedlock: no claim for lock ' || @lock@,
      hint = 'Set fencedlock.claim to the claim of the active grant, with SET LOCAL in the transaction.';
  end if;
  epoch := split_part(claimed, '@', 1)::bigint;
  holder := substr(claimed, strpos(claimed, '@') + 1);
end $body$;

-- What may be done about a work item now. verdict: send (this attempt is recorded; call @sent@ next) | done (it took effect) |
-- unsettled (whether it did is not known: settle it, or repeat it under its key).
create or replace function @begin@(item text, key text default null, ttl interval default null, what jsonb default null,
                                   out verdict text, out attempt int, out idempotency_key text, out answer text)
  language plpgsql set search_path = pg_catalog, pg_temp as $body$
#variable_conflict use_column
declare me record; last @table@; open @operations@; settled @operations@;
begin
  select * into me from @owner@(item);
  select * into last from @table@ o where o.work_item = item order by o.attempt desc limit 1;
  -- Every attempt counts: what is found out about an early one may come late.
  select * into open from @operations@ o where o.work_item = item and o.unsettled order by o.attempt desc limit 1;
  select * into settled from @operations@ o where o.work_item = item and (o.state = 'confirmed' or o.effect = 'happened') order by o.attempt desc limit 1;
  if open.attempt is not null then
    verdict := 'unsettled'; attempt := open.attempt; idempotency_key := open.idempotency_key; answer := open.answer;
  elsif settled.attempt is not null then
    verdict := 'done'; attempt := settled.attempt; idempotency_key := settled.idempotency_key; answer := settled.answer;
  elsif last.state = 'intent' then
    -- It was not sent: whoever meant to needed this table's word for it first. A thread of this owner may be about to, under its key.
    verdict := 'send'; attempt := last.attempt; idempotency_key := last.idempotency_key;
    if (last.epoch, last.holder) is distinct from (me.epoch, me.holder) then
      update @table@ o set epoch = me.epoch, holder = me.holder, idempotency_key = key, key_ttl = ttl, request = what, intended_at = clock_timestamp()
       where o.work_item = item and o.attempt = last.attempt;
      idempotency_key := key;
    end if;
  else
    if exists (select from @operations@ o where o.work_item = item and o.idempotency_key = key and o.effect = 'compensated') then
      raise exception using errcode = 'FL003', message = format('fencedlock: the key of %s belongs to an attempt that was compensated', item),
        hint = 'The receiver would repeat that answer and do nothing: use another key.';
    end if;
    verdict := 'send'; attempt := coalesce(last.attempt, 0) + 1; idempotency_key := key; answer := null;
    insert into @table@ (work_item, attempt, state, epoch, holder, idempotency_key, key_ttl, request)
      values (item, attempt, 'intent', me.epoch, me.holder, key, ttl, what);
  end if;
end $body$;

-- It is about to be sent. Commit this before the call is made. Once only: who comes second is refused.
create or replace function @sent@(item text, which int) returns void
  language plpgsql set search_path = pg_catalog, pg_temp as $body$
#variable_conflict use_column
declare me record;
begin
  select * into me from @owner@(item);
  update @table@ o set state = 'sent', sends = 1, sent_at = clock_timestamp(), first_sent_at = clock_timestamp(), epoch = me.epoch, holder = me.holder
   where o.work_item = item and o.attempt = which and o.state = 'intent' and o.epoch = me.epoch and o.holder = me.holder;
  if not found then
    raise exception using errcode = 'FL003', message = format('fencedlock: attempt %s at %s is not yours to send', which, item),
      hint = 'It was sent already, or another owner has begun it: ask what may be done about it.';
  end if;
end $body$;

-- It is about to be sent once more under the same key, which the receiver still remembers. Commit this before the call is made.
create or replace function @resent@(item text, which int) returns text
  language plpgsql set search_path = pg_catalog, pg_temp as $body$
#variable_conflict use_column
declare me record; now_key text;
begin
  select * into me from @owner@(item);
  update @table@ o set state = 'sent', sends = o.sends + 1, sent_at = clock_timestamp(), epoch = me.epoch, holder = me.holder, ended_at = null
   where o.work_item = item and o.attempt = which and o.state in ('sent', 'unknown') and o.idempotency_key is not null
     and (o.key_ttl is null or clock_timestamp() < o.first_sent_at + o.key_ttl)
     and not exists (select from @settlements@ s where s.work_item = item and s.attempt = which)
  returning o.idempotency_key into now_key;
  if not found then
    raise exception using errcode = 'FL003', message = format('fencedlock: attempt %s at %s cannot be repeated', which, item),
      hint = 'It has no idempotency key, or the receiver has forgotten the key by now, or its outcome is known. Ask the receiver, and settle it.';
  end if;
  return now_key;
end $body$;

-- What became of it: confirmed (it took effect) | failed (the receiver said that it did not) | unknown.
create or replace function @ended@(item text, which int, outcome text, said text) returns void
  language plpgsql set search_path = pg_catalog, pg_temp as $body$
#variable_conflict use_column
begin
  perform @owner@(item);
  if outcome is null or outcome not in ('confirmed', 'failed', 'unknown') then
    raise exception using errcode = '22023', message = format('fencedlock: an outcome is confirmed, failed or unknown, and not %s', coalesce(outcome, 'null'));
  end if;
  -- Also where somebody settled it meanwhile: then both are on record, and the view says when they differ. That it happened counts more than an
  -- owner's look before. That it failed says nothing about a packet that was sent earlier.
  update @table@ o set state = case when outcome = 'failed' and o.sends > 1 then 'unknown' else outcome end, effect = null, answer = said,
         ended_at = clock_timestamp()
   where o.work_item = item and o.attempt = which
     and (o.state in ('sent', 'unknown') or outcome = 'confirmed' and o.state = 'reconciled' and o.effect = 'absent');
  if not found then
    raise exception using errcode = 'FL003', message = format('fencedlock: attempt %s at %s is not under way', which, item),
      hint = 'It was not sent, or its outcome is on record.';
  end if;
end $body$;

-- The owner asked the receiver: happened | absent | compensated.
create or replace function @reconciled@(item text, which int, known text, reason text) returns void
  language plpgsql set search_path = pg_catalog, pg_temp as $body$
#variable_conflict use_column
declare me record;
begin
  select * into me from @owner@(item);
  update @table@ o set state = 'reconciled', effect = known, answer = reason, epoch = me.epoch, holder = me.holder, ended_at = clock_timestamp()
   where o.work_item = item and o.attempt = which and o.state in ('sent', 'unknown')
     and not exists (select from @settlements@ s where s.work_item = item and s.attempt = which);
  if not found then
    raise exception using errcode = 'FL003', message = format('fencedlock: attempt %s at %s has nothing to reconcile', which, item),
      hint = 'It was not sent, or its outcome is on record.';
  end if;
end $body$;

-- A person has found out: happened | absent | compensated. Needs no claim. May be said again; the last word counts.
create or replace function @settle@(item text, which int, known text, who text, reason text) returns void
  language plpgsql set search_path = pg_catalog, pg_temp as $body$
begin
  perform pg_advisory_xact_lock(hashtextextended(item, @table_oid@::oid::bigint));
  if not exists (select from @operations@ o where o.work_item = item and o.attempt = which and o.sent_at is not null) then
    raise exception using errcode = 'FL003', message = format('fencedlock: there is no attempt %s at %s that was sent', which, item);
  end if;
  insert into @settlements@ (work_item, attempt, effect, settled_by, why) values (item, which, known, who, reason);
end $body$;

revoke all on function @owner@(text), @begin@(text, text, interval, jsonb), @sent@(text, int), @resent@(text, int), @ended@(text, int, text, text),
  @reconciled@(text, int, text, text), @settle@(text, int, text, text, text) from public;
