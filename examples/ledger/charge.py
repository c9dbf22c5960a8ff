"""A payment that is recorded before it is made: the operation ledger of fencedlock, from Python.

    pip install 'psycopg[binary]'
    fencedlock run --lock card-charges -- python charge.py invoice-17 4200

`fencedlock run` sets the claim of the lock's owner in PGOPTIONS; libpq, and so psycopg, carries it. Run again after a crash, the same
command finds out what may be done: nothing is sent twice without a key that the provider remembers.

LEDGER names the ledger's table, DATABASE_URL its database, PROVIDER the provider. Ends with 0 when the charge is made, 3 when this process
does not own the lock any more, 4 when somebody has to find out what became of an attempt (`fencedlock ledger list`), 5 when the provider
said that nothing was charged.
"""

import json
import os
import sys
import urllib.error
import urllib.request

import psycopg
from psycopg import sql

LEDGER = os.environ.get("LEDGER", "payment_operations")
PROVIDER = os.environ.get("PROVIDER", "https://payments.example/charges")


def step(connection, function, *arguments):
    """One step of the ledger, committed. Nothing may be sent before the step that says so has returned."""
    call = sql.SQL("select * from {}({})").format(
        sql.Identifier(f"{LEDGER}_{function}"), sql.SQL(", ").join(sql.Placeholder() * len(arguments))
    )
    with connection.transaction():
        return connection.execute(call, arguments).fetchone()


def send(key, request):
    """Asks the provider: what came of it, and what it said. Only an answer that says so is a success or a failure."""
    http = urllib.request.Request(PROVIDER, json.dumps(request).encode(), {"Idempotency-Key": key, "Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(http, timeout=30) as answer:
            return "confirmed", answer.read().decode()
    except urllib.error.HTTPError as refusal:
        # 402 says that nothing was charged. Anything else does not say what happened.
        return ("failed" if refusal.code == 402 else "unknown"), f"{refusal.code} {refusal.reason}"
    except OSError as broken:
        return "unknown", str(broken)


def charge(connection, invoice, cents):
    # The key names the work, and not the owner: the next owner has to use the same.
    key, request = f"charge-{invoice}", {"invoice": invoice, "cents": cents}
    verdict, attempt, key, answer = step(connection, "begin", invoice, key, "24 hours", json.dumps(request))
    if verdict == "done":
        print(f"{invoice} was charged before: {answer}")
        return 0
    if verdict == "unsettled":
        try:
            step(connection, "resent", invoice, attempt)
        except psycopg.Error as error:
            if error.sqlstate != "FL003":
                raise
            print(f"{invoice}: {error.diag.message_primary}", file=sys.stderr)
            return 4
    else:
        step(connection, "sent", invoice, attempt)
    outcome, said = send(key, request)
    step(connection, "ended", invoice, attempt, outcome, said)
    print(f"{invoice}: {outcome}: {said}")
    return {"confirmed": 0, "unknown": 4, "failed": 5}[outcome]


if __name__ == "__main__":
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as database:
        try:
            sys.exit(charge(database, sys.argv[1], int(sys.argv[2])))
        except psycopg.Error as error:
            if error.sqlstate not in ("FL001", "FL002"):
                raise
            print(error.diag.message_primary, file=sys.stderr)
            sys.exit(3)
