create table if not exists @schema@.@thing@ (id int primary key, marker text not null);
@trigger@
create or replace function @schema@.@reset@() returns void
  language plpgsql security definer set search_path = pg_catalog, pg_temp as @reset_body@;
revoke all on function @schema@.@reset@() from public;
