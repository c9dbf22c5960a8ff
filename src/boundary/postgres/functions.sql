create or replace function @schema@.@guard@() returns trigger
  language plpgsql security definer set search_path = pg_catalog, pg_temp as @guard_body@;
create or replace function @schema@.@judge@(claims text, relation text) returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp as @judge_body@;
create or replace function @schema@.@activate@(next bigint, holder text) returns text
  language plpgsql security definer set search_path = pg_catalog, pg_temp as @activate_body@;
revoke all on function @schema@.@guard@(), @schema@.@judge@(text, text), @schema@.@activate@(bigint, text) from public;
