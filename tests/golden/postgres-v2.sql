SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA repertory;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE repertory.erasures (
    part text NOT NULL,
    marked timestamp with time zone NOT NULL
);
CREATE SEQUENCE repertory.generations
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE repertory.meta (
    version integer NOT NULL
);
CREATE TABLE repertory.owed (
    session bigint NOT NULL,
    agent text NOT NULL COLLATE pg_catalog."C",
    at double precision NOT NULL,
    why text NOT NULL,
    claims integer DEFAULT 0 NOT NULL
);
CREATE TABLE repertory.owners (
    owner text NOT NULL COLLATE pg_catalog."C",
    lock_key bigint,
    beat timestamp with time zone NOT NULL,
    ttl_s double precision NOT NULL,
    joined timestamp with time zone NOT NULL,
    server_start timestamp with time zone NOT NULL,
    address text
)
WITH (fillfactor='50');
CREATE TABLE repertory.requests (
    owner text NOT NULL COLLATE pg_catalog."C",
    session text NOT NULL COLLATE pg_catalog."C"
);
CREATE TABLE repertory.rows (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
)
PARTITION BY HASH (session);
CREATE TABLE repertory.rows_00 (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE repertory.rows_01 (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE repertory.rows_02 (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE repertory.rows_03 (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE repertory.rows_04 (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE repertory.rows_05 (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE repertory.rows_06 (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE repertory.rows_07 (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE repertory.rows_08 (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE repertory.rows_09 (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE repertory.rows_10 (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE repertory.rows_11 (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE repertory.rows_12 (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE repertory.rows_13 (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE repertory.rows_14 (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE repertory.rows_15 (
    session bigint NOT NULL,
    seq bigint NOT NULL,
    low bigint NOT NULL,
    agent smallint NOT NULL,
    kind smallint NOT NULL,
    version smallint NOT NULL,
    link bytea NOT NULL,
    salt bytea NOT NULL,
    body bytea NOT NULL
);
CREATE TABLE repertory.sessions (
    id bigint NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C",
    aside integer DEFAULT 0 NOT NULL,
    generation bigint NOT NULL,
    owner text COLLATE pg_catalog."C",
    agents text[] DEFAULT '{}'::text[] NOT NULL,
    seqs bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    created_at double precision,
    updated_at double precision,
    due_at double precision,
    tries integer DEFAULT 0 NOT NULL,
    parked_at double precision
)
WITH (fillfactor='70');
ALTER TABLE repertory.sessions ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME repertory.sessions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
ALTER TABLE ONLY repertory.rows ATTACH PARTITION repertory.rows_00 FOR VALUES WITH (modulus 16, remainder 0);
ALTER TABLE ONLY repertory.rows ATTACH PARTITION repertory.rows_01 FOR VALUES WITH (modulus 16, remainder 1);
ALTER TABLE ONLY repertory.rows ATTACH PARTITION repertory.rows_02 FOR VALUES WITH (modulus 16, remainder 2);
ALTER TABLE ONLY repertory.rows ATTACH PARTITION repertory.rows_03 FOR VALUES WITH (modulus 16, remainder 3);
ALTER TABLE ONLY repertory.rows ATTACH PARTITION repertory.rows_04 FOR VALUES WITH (modulus 16, remainder 4);
ALTER TABLE ONLY repertory.rows ATTACH PARTITION repertory.rows_05 FOR VALUES WITH (modulus 16, remainder 5);
ALTER TABLE ONLY repertory.rows ATTACH PARTITION repertory.rows_06 FOR VALUES WITH (modulus 16, remainder 6);
ALTER TABLE ONLY repertory.rows ATTACH PARTITION repertory.rows_07 FOR VALUES WITH (modulus 16, remainder 7);
ALTER TABLE ONLY repertory.rows ATTACH PARTITION repertory.rows_08 FOR VALUES WITH (modulus 16, remainder 8);
ALTER TABLE ONLY repertory.rows ATTACH PARTITION repertory.rows_09 FOR VALUES WITH (modulus 16, remainder 9);
ALTER TABLE ONLY repertory.rows ATTACH PARTITION repertory.rows_10 FOR VALUES WITH (modulus 16, remainder 10);
ALTER TABLE ONLY repertory.rows ATTACH PARTITION repertory.rows_11 FOR VALUES WITH (modulus 16, remainder 11);
ALTER TABLE ONLY repertory.rows ATTACH PARTITION repertory.rows_12 FOR VALUES WITH (modulus 16, remainder 12);
ALTER TABLE ONLY repertory.rows ATTACH PARTITION repertory.rows_13 FOR VALUES WITH (modulus 16, remainder 13);
ALTER TABLE ONLY repertory.rows ATTACH PARTITION repertory.rows_14 FOR VALUES WITH (modulus 16, remainder 14);
ALTER TABLE ONLY repertory.rows ATTACH PARTITION repertory.rows_15 FOR VALUES WITH (modulus 16, remainder 15);
INSERT INTO repertory.meta VALUES (2);
INSERT INTO repertory.owed VALUES (3, 'default', 5000, 'expiry', 1);
INSERT INTO repertory.owed VALUES (1, 'default', 1310, 'turn', 5);
INSERT INTO repertory.rows_03 VALUES (4, 1, 1, 1, 1, 1, '\x6e7b883dbd1e76c979f0a479d589352c', '\x73737373737373737373737373737373', '\x7b226174223a312e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a22616e206167656e7420736179732030227d5d7d2c227475726e223a312c22696e646578223a307d');
INSERT INTO repertory.rows_03 VALUES (4, 2, 1, 1, 1, 1, '\x2a6101d16aa8947d8b2c2e9f141efb5d', '\x73737373737373737373737373737373', '\x7b226174223a322e302c226d657373616765223a7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274657874223a22616e206167656e7420736179732031227d5d7d2c227475726e223a312c22696e646578223a317d');
INSERT INTO repertory.rows_03 VALUES (4, 1, 1, 2, 1, 1, '\xe29f9b6c1782b5e7fdcec15192d11c14', '\x73737373737373737373737373737373', '\x7b226174223a312e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a22625c226320736179732030227d5d7d2c227475726e223a312c22696e646578223a307d');
INSERT INTO repertory.rows_08 VALUES (1, 1, 1, 1, 1, 1, '\x04896fa81e79f345f206194b299b68b9', '\x73737373737373737373737373737373', '\x7b226174223a312e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c7420736179732030227d5d7d2c227475726e223a312c22696e646578223a307d');
INSERT INTO repertory.rows_08 VALUES (1, 2, 1, 1, 1, 1, '\x31d263b95ee39edaece8580ca4e94ef3', '\x73737373737373737373737373737373', '\x7b226174223a322e302c226d657373616765223a7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274657874223a2264656661756c7420736179732031227d5d7d2c227475726e223a312c22696e646578223a317d');
INSERT INTO repertory.rows_08 VALUES (1, 3, 1, 1, 1, 1, '\xa920e1eb661e314c70d31c8ced0fd0ac', '\x73737373737373737373737373737373', '\x7b226174223a332e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c7420736179732032227d5d7d2c227475726e223a322c22696e646578223a327d');
INSERT INTO repertory.rows_08 VALUES (1, 4, 1, 1, 1, 1, '\x1860ebfc8fe25cccc9b07d677b40b886', '\x73737373737373737373737373737373', '\x7b226174223a342e302c226d657373616765223a7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274657874223a2264656661756c7420736179732033227d5d7d2c227475726e223a322c22696e646578223a337d');
INSERT INTO repertory.rows_08 VALUES (1, 5, 1, 1, 1, 1, '\xf3f3f30bbaff8758a8145fbfd268d20d', '\x73737373737373737373737373737373', '\x7b226174223a352e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c7420736179732034227d5d7d2c227475726e223a332c22696e646578223a347d');
INSERT INTO repertory.rows_08 VALUES (1, 6, 1, 1, 1, 1, '\xa3cc79a02f62cf5bc8afb5439e94c761', '\x73737373737373737373737373737373', '\x7b226174223a362e302c226d657373616765223a7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274657874223a2264656661756c7420736179732035227d5d7d2c227475726e223a332c22696e646578223a357d');
INSERT INTO repertory.rows_08 VALUES (1, 7, 1, 1, 1, 1, '\xc141a24abd4af2e1435b3d746141682a', '\x73737373737373737373737373737373', '\x7b226174223a372e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c7420736179732036227d5d7d2c227475726e223a342c22696e646578223a367d');
INSERT INTO repertory.rows_08 VALUES (1, 8, 1, 1, 1, 1, '\x514b450de44f3562117b8443070a6264', '\x73737373737373737373737373737373', '\x7b226174223a382e302c226d657373616765223a7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274657874223a2264656661756c7420736179732037227d5d7d2c227475726e223a342c22696e646578223a377d');
INSERT INTO repertory.rows_08 VALUES (1, 9, 1, 1, 1, 1, '\xbff2914ed510c00d4e52f6f051c8adcd', '\x73737373737373737373737373737373', '\x7b226174223a392e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c7420736179732038227d5d7d2c227475726e223a352c22696e646578223a387d');
INSERT INTO repertory.rows_08 VALUES (1, 10, 1, 1, 1, 1, '\x94a10298eab8db7c07d8e35d5a40c4b4', '\x73737373737373737373737373737373', '\x7b226174223a31302e302c226d657373616765223a7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274657874223a2264656661756c7420736179732039227d5d7d2c227475726e223a352c22696e646578223a397d');
INSERT INTO repertory.rows_08 VALUES (1, 11, 1, 1, 10, 1, '\x58c417babea93e3e558ed4535fdc2bf6', '\x73737373737373737373737373737373', '\x7b226174223a392e302c226c6162656c223a2261667465722039227d');
INSERT INTO repertory.rows_08 VALUES (1, 12, 6, 1, 4, 1, '\x36a3894c92852b5de7c44ee111c1ea56', '\x73737373737373737373737373737373', '\x7b226174223a392e302c2276696577223a7b2266697273745f73686f776e223a377d2c227061746368223a747275657d');
INSERT INTO repertory.rows_08 VALUES (1, 13, 6, 1, 1, 1, '\x94369284162989820fc4e6ea0cc4639f', '\x73737373737373737373737373737373', '\x7b226174223a31312e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203130227d5d7d2c227475726e223a362c22696e646578223a31307d');
INSERT INTO repertory.rows_08 VALUES (1, 14, 6, 1, 1, 1, '\x9ac1aa3731c5af21434224973b8981aa', '\x73737373737373737373737373737373', '\x7b226174223a31322e302c226d657373616765223a7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203131227d5d7d2c227475726e223a362c22696e646578223a31317d');
INSERT INTO repertory.rows_08 VALUES (1, 15, 6, 1, 1, 1, '\x1fbcbe89a26d21a17ba9b28b33fcd8c5', '\x73737373737373737373737373737373', '\x7b226174223a31332e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203132227d5d7d2c227475726e223a372c22696e646578223a31327d');
INSERT INTO repertory.rows_08 VALUES (1, 16, 6, 1, 1, 1, '\x5028683deec14d7a067c1dcc54fd2660', '\x73737373737373737373737373737373', '\x7b226174223a31342e302c226d657373616765223a7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203133227d5d7d2c227475726e223a372c22696e646578223a31337d');
INSERT INTO repertory.rows_08 VALUES (1, 17, 6, 1, 1, 1, '\xf2075becbece7dcc19ccbf5b88498b9c', '\x73737373737373737373737373737373', '\x7b226174223a31352e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203134227d5d7d2c227475726e223a382c22696e646578223a31347d');
INSERT INTO repertory.rows_08 VALUES (1, 18, 6, 1, 1, 1, '\x9f39dcf48883126ab151979bdd9050a2', '\x73737373737373737373737373737373', '\x7b226174223a31362e302c226d657373616765223a7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203135227d5d7d2c227475726e223a382c22696e646578223a31357d');
INSERT INTO repertory.rows_08 VALUES (1, 19, 6, 1, 1, 1, '\x7347a4d1326aa8d073b0ab92e0c4f9e0', '\x73737373737373737373737373737373', '\x7b226174223a31372e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203136227d5d7d2c227475726e223a392c22696e646578223a31367d');
INSERT INTO repertory.rows_08 VALUES (1, 20, 6, 1, 1, 1, '\x458806e10538576d6ecd527b087e8c94', '\x73737373737373737373737373737373', '\x7b226174223a31382e302c226d657373616765223a7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203137227d5d7d2c227475726e223a392c22696e646578223a31377d');
INSERT INTO repertory.rows_08 VALUES (1, 21, 6, 1, 1, 1, '\x5c3316fe9ace014a04dd561a511cd182', '\x73737373737373737373737373737373', '\x7b226174223a31392e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203138227d5d7d2c227475726e223a31302c22696e646578223a31387d');
INSERT INTO repertory.rows_08 VALUES (1, 22, 6, 1, 1, 1, '\xfb2a50d01dfebecba27d965a1b49ed16', '\x73737373737373737373737373737373', '\x7b226174223a32302e302c226d657373616765223a7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203139227d5d7d2c227475726e223a31302c22696e646578223a31397d');
INSERT INTO repertory.rows_08 VALUES (1, 23, 6, 1, 10, 1, '\x2329522a4b46b5513494b15aee33a94e', '\x73737373737373737373737373737373', '\x7b226174223a31392e302c226c6162656c223a226166746572203139227d');
INSERT INTO repertory.rows_08 VALUES (1, 24, 18, 1, 4, 1, '\xf2fe9f61686c6a36f9046468fe5112a6', '\x73737373737373737373737373737373', '\x7b226174223a31392e302c2276696577223a7b2266697273745f73686f776e223a31397d2c227061746368223a747275657d');
INSERT INTO repertory.rows_08 VALUES (1, 25, 18, 1, 1, 1, '\xacc23b23919007a082c3268e3432cba6', '\x73737373737373737373737373737373', '\x7b226174223a32312e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203230227d5d7d2c227475726e223a31312c22696e646578223a32307d');
INSERT INTO repertory.rows_08 VALUES (1, 26, 18, 1, 1, 1, '\xc1aa276d83b18fecdfc8d99bcc91b6d1', '\x73737373737373737373737373737373', '\x7b226174223a32322e302c226d657373616765223a7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203231227d5d7d2c227475726e223a31312c22696e646578223a32317d');
INSERT INTO repertory.rows_08 VALUES (1, 27, 18, 1, 1, 1, '\x33f83dff3544d74af1b3489848eb8e97', '\x73737373737373737373737373737373', '\x7b226174223a32332e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203232227d5d7d2c227475726e223a31322c22696e646578223a32327d');
INSERT INTO repertory.rows_08 VALUES (1, 28, 18, 1, 1, 1, '\xb374c63d00968017db60035ba7a56bd7', '\x73737373737373737373737373737373', '\x7b226174223a32342e302c226d657373616765223a7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203233227d5d7d2c227475726e223a31322c22696e646578223a32337d');
INSERT INTO repertory.rows_08 VALUES (1, 29, 18, 1, 1, 1, '\x1dd40cedb29910df1e25fc96ae1c8051', '\x73737373737373737373737373737373', '\x7b226174223a32352e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203234227d5d7d2c227475726e223a31332c22696e646578223a32347d');
INSERT INTO repertory.rows_08 VALUES (1, 30, 18, 1, 1, 1, '\x6f11c08c11a86bf6206d5ada852b4bde', '\x73737373737373737373737373737373', '\x7b226174223a32362e302c226d657373616765223a7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203235227d5d7d2c227475726e223a31332c22696e646578223a32357d');
INSERT INTO repertory.rows_08 VALUES (1, 31, 18, 1, 1, 1, '\xd6a338d4d0b4961a6f0c9f99ecc3cefa', '\x73737373737373737373737373737373', '\x7b226174223a32372e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203236227d5d7d2c227475726e223a31342c22696e646578223a32367d');
INSERT INTO repertory.rows_08 VALUES (1, 32, 18, 1, 1, 1, '\x8bf9d8ddb679d1a675ae9aeb95cdc684', '\x73737373737373737373737373737373', '\x7b226174223a32382e302c226d657373616765223a7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203237227d5d7d2c227475726e223a31342c22696e646578223a32377d');
INSERT INTO repertory.rows_08 VALUES (1, 33, 18, 1, 1, 1, '\x1870a283bf850be759470d29c7582e2e', '\x73737373737373737373737373737373', '\x7b226174223a32392e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203238227d5d7d2c227475726e223a31352c22696e646578223a32387d');
INSERT INTO repertory.rows_08 VALUES (1, 34, 18, 1, 1, 1, '\x0dcacf83728aefd02901d0299d696f08', '\x73737373737373737373737373737373', '\x7b226174223a33302e302c226d657373616765223a7b22726f6c65223a22617373697374616e74222c22636f6e74656e74223a5b7b2274657874223a2264656661756c742073617973203239227d5d7d2c227475726e223a31352c22696e646578223a32397d');
INSERT INTO repertory.rows_08 VALUES (1, 35, 18, 1, 10, 1, '\x35ad6e911230fcc3d8833e002cf96fa4', '\x73737373737373737373737373737373', '\x7b226174223a32392e302c226c6162656c223a226166746572203239227d');
INSERT INTO repertory.rows_08 VALUES (1, 36, 30, 1, 4, 1, '\xfe8574475a2413b532febb68d115bf57', '\x73737373737373737373737373737373', '\x7b226174223a32392e302c2276696577223a7b2266697273745f73686f776e223a33317d2c227061746368223a747275657d');
INSERT INTO repertory.rows_09 VALUES (3, 1, 1, 1, 1, 1, '\x04896fa81e79f345f206194b299b68b9', '\x73737373737373737373737373737373', '\x7b226174223a312e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c7420736179732030227d5d7d2c227475726e223a312c22696e646578223a307d');
INSERT INTO repertory.rows_09 VALUES (3, 2, 1, 1, 1, 1, '\x31d263b95ee39edaece8580ca4e94ef3', '\x', '\xcd3333b3f23c53f54c4423eea5826ae71304583923e17405e20d5c431c9b4e2f');
INSERT INTO repertory.rows_09 VALUES (3, 3, 1, 1, 1, 1, '\xa920e1eb661e314c70d31c8ced0fd0ac', '\x73737373737373737373737373737373', '\x7b226174223a332e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c7420736179732032227d5d7d2c227475726e223a322c22696e646578223a327d');
INSERT INTO repertory.rows_10 VALUES (2, 1, 1, 1, 1, 1, '\x04896fa81e79f345f206194b299b68b9', '\x73737373737373737373737373737373', '\x7b226174223a312e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c7420736179732030227d5d7d2c227475726e223a312c22696e646578223a307d');
INSERT INTO repertory.rows_10 VALUES (2, 2, 1, 1, 1, 1, '\x31d263b95ee39edaece8580ca4e94ef3', '\x', '\xcd3333b3f23c53f54c4423eea5826ae71304583923e17405e20d5c431c9b4e2f');
INSERT INTO repertory.rows_10 VALUES (2, 3, 1, 1, 1, 1, '\xa920e1eb661e314c70d31c8ced0fd0ac', '\x73737373737373737373737373737373', '\x7b226174223a332e302c226d657373616765223a7b22726f6c65223a2275736572222c22636f6e74656e74223a5b7b2274657874223a2264656661756c7420736179732032227d5d7d2c227475726e223a322c22696e646578223a327d');
INSERT INTO repertory.sessions VALUES (2, 'erased', 1, 2, NULL, '{default}', '{3}', 1, 3, NULL, 0, NULL);
INSERT INTO repertory.sessions VALUES (4, 'Ärger ''mit'' "Zeichen"', 0, 4, NULL, '{"an agent","b\"c"}', '{2,1}', 1, 1, NULL, 0, NULL);
INSERT INTO repertory.sessions VALUES (1, 'window', 0, 5, 'owner-2', '{default}', '{36}', 1, 30, NULL, 0, NULL);
INSERT INTO repertory.sessions VALUES (3, 'erased', 0, 6, 'owner-2', '{default}', '{3}', 1, 3, NULL, 0, NULL);
SELECT pg_catalog.setval('repertory.generations', 6, true);
SELECT pg_catalog.setval('repertory.sessions_id_seq', 6, true);
ALTER TABLE ONLY repertory.erasures
    ADD CONSTRAINT erasures_pkey PRIMARY KEY (part);
ALTER TABLE ONLY repertory.owed
    ADD CONSTRAINT owed_pkey PRIMARY KEY (session, agent);
ALTER TABLE ONLY repertory.owners
    ADD CONSTRAINT owners_pkey PRIMARY KEY (owner);
ALTER TABLE ONLY repertory.requests
    ADD CONSTRAINT requests_pkey PRIMARY KEY (owner, session);
ALTER TABLE ONLY repertory.rows
    ADD CONSTRAINT rows_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.rows_00
    ADD CONSTRAINT rows_00_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.rows_01
    ADD CONSTRAINT rows_01_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.rows_02
    ADD CONSTRAINT rows_02_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.rows_03
    ADD CONSTRAINT rows_03_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.rows_04
    ADD CONSTRAINT rows_04_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.rows_05
    ADD CONSTRAINT rows_05_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.rows_06
    ADD CONSTRAINT rows_06_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.rows_07
    ADD CONSTRAINT rows_07_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.rows_08
    ADD CONSTRAINT rows_08_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.rows_09
    ADD CONSTRAINT rows_09_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.rows_10
    ADD CONSTRAINT rows_10_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.rows_11
    ADD CONSTRAINT rows_11_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.rows_12
    ADD CONSTRAINT rows_12_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.rows_13
    ADD CONSTRAINT rows_13_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.rows_14
    ADD CONSTRAINT rows_14_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.rows_15
    ADD CONSTRAINT rows_15_pkey PRIMARY KEY (session, agent, seq);
ALTER TABLE ONLY repertory.sessions
    ADD CONSTRAINT sessions_name_aside_key UNIQUE (name, aside);
ALTER TABLE ONLY repertory.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (id);
CREATE INDEX due ON repertory.owed USING btree (at) WHERE (claims < 5);
CREATE INDEX labels ON ONLY repertory.rows USING btree (session, agent, seq) WHERE (kind = 10);
CREATE INDEX rows_00_session_agent_seq_idx ON repertory.rows_00 USING btree (session, agent, seq) WHERE (kind = 10);
CREATE INDEX rows_01_session_agent_seq_idx ON repertory.rows_01 USING btree (session, agent, seq) WHERE (kind = 10);
CREATE INDEX rows_02_session_agent_seq_idx ON repertory.rows_02 USING btree (session, agent, seq) WHERE (kind = 10);
CREATE INDEX rows_03_session_agent_seq_idx ON repertory.rows_03 USING btree (session, agent, seq) WHERE (kind = 10);
CREATE INDEX rows_04_session_agent_seq_idx ON repertory.rows_04 USING btree (session, agent, seq) WHERE (kind = 10);
CREATE INDEX rows_05_session_agent_seq_idx ON repertory.rows_05 USING btree (session, agent, seq) WHERE (kind = 10);
CREATE INDEX rows_06_session_agent_seq_idx ON repertory.rows_06 USING btree (session, agent, seq) WHERE (kind = 10);
CREATE INDEX rows_07_session_agent_seq_idx ON repertory.rows_07 USING btree (session, agent, seq) WHERE (kind = 10);
CREATE INDEX rows_08_session_agent_seq_idx ON repertory.rows_08 USING btree (session, agent, seq) WHERE (kind = 10);
CREATE INDEX rows_09_session_agent_seq_idx ON repertory.rows_09 USING btree (session, agent, seq) WHERE (kind = 10);
CREATE INDEX rows_10_session_agent_seq_idx ON repertory.rows_10 USING btree (session, agent, seq) WHERE (kind = 10);
CREATE INDEX rows_11_session_agent_seq_idx ON repertory.rows_11 USING btree (session, agent, seq) WHERE (kind = 10);
CREATE INDEX rows_12_session_agent_seq_idx ON repertory.rows_12 USING btree (session, agent, seq) WHERE (kind = 10);
CREATE INDEX rows_13_session_agent_seq_idx ON repertory.rows_13 USING btree (session, agent, seq) WHERE (kind = 10);
CREATE INDEX rows_14_session_agent_seq_idx ON repertory.rows_14 USING btree (session, agent, seq) WHERE (kind = 10);
CREATE INDEX rows_15_session_agent_seq_idx ON repertory.rows_15 USING btree (session, agent, seq) WHERE (kind = 10);
ALTER INDEX repertory.rows_pkey ATTACH PARTITION repertory.rows_00_pkey;
ALTER INDEX repertory.labels ATTACH PARTITION repertory.rows_00_session_agent_seq_idx;
ALTER INDEX repertory.rows_pkey ATTACH PARTITION repertory.rows_01_pkey;
ALTER INDEX repertory.labels ATTACH PARTITION repertory.rows_01_session_agent_seq_idx;
ALTER INDEX repertory.rows_pkey ATTACH PARTITION repertory.rows_02_pkey;
ALTER INDEX repertory.labels ATTACH PARTITION repertory.rows_02_session_agent_seq_idx;
ALTER INDEX repertory.rows_pkey ATTACH PARTITION repertory.rows_03_pkey;
ALTER INDEX repertory.labels ATTACH PARTITION repertory.rows_03_session_agent_seq_idx;
ALTER INDEX repertory.rows_pkey ATTACH PARTITION repertory.rows_04_pkey;
ALTER INDEX repertory.labels ATTACH PARTITION repertory.rows_04_session_agent_seq_idx;
ALTER INDEX repertory.rows_pkey ATTACH PARTITION repertory.rows_05_pkey;
ALTER INDEX repertory.labels ATTACH PARTITION repertory.rows_05_session_agent_seq_idx;
ALTER INDEX repertory.rows_pkey ATTACH PARTITION repertory.rows_06_pkey;
ALTER INDEX repertory.labels ATTACH PARTITION repertory.rows_06_session_agent_seq_idx;
ALTER INDEX repertory.rows_pkey ATTACH PARTITION repertory.rows_07_pkey;
ALTER INDEX repertory.labels ATTACH PARTITION repertory.rows_07_session_agent_seq_idx;
ALTER INDEX repertory.rows_pkey ATTACH PARTITION repertory.rows_08_pkey;
ALTER INDEX repertory.labels ATTACH PARTITION repertory.rows_08_session_agent_seq_idx;
ALTER INDEX repertory.rows_pkey ATTACH PARTITION repertory.rows_09_pkey;
ALTER INDEX repertory.labels ATTACH PARTITION repertory.rows_09_session_agent_seq_idx;
ALTER INDEX repertory.rows_pkey ATTACH PARTITION repertory.rows_10_pkey;
ALTER INDEX repertory.labels ATTACH PARTITION repertory.rows_10_session_agent_seq_idx;
ALTER INDEX repertory.rows_pkey ATTACH PARTITION repertory.rows_11_pkey;
ALTER INDEX repertory.labels ATTACH PARTITION repertory.rows_11_session_agent_seq_idx;
ALTER INDEX repertory.rows_pkey ATTACH PARTITION repertory.rows_12_pkey;
ALTER INDEX repertory.labels ATTACH PARTITION repertory.rows_12_session_agent_seq_idx;
ALTER INDEX repertory.rows_pkey ATTACH PARTITION repertory.rows_13_pkey;
ALTER INDEX repertory.labels ATTACH PARTITION repertory.rows_13_session_agent_seq_idx;
ALTER INDEX repertory.rows_pkey ATTACH PARTITION repertory.rows_14_pkey;
ALTER INDEX repertory.labels ATTACH PARTITION repertory.rows_14_session_agent_seq_idx;
ALTER INDEX repertory.rows_pkey ATTACH PARTITION repertory.rows_15_pkey;
ALTER INDEX repertory.labels ATTACH PARTITION repertory.rows_15_session_agent_seq_idx;
